"""``meshcomm shell`` in a pseudo-terminal: typed keys, Ctrl-C, Ctrl-D, completion; with IPython and without."""

import sys
import time

import pytest

from support.jobs import mpiexec

pexpect = pytest.importorskip("pexpect")  # the extra "test" has it

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WITHIN = 60
PLAIN = "import sys; sys.modules['IPython'] = None; from meshcomm.tools.cli.main import main; sys.exit(main())"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "first.py"
    path.write_text("import numpy as np\ny = np.ones(10**6)\nprint('from file', float(y.sum()))\n")
    return path


def typed(python, file):
    arguments = [*python, "shell", "-n", "3", "--numpy", str(file)]
    terminal = pexpect.spawn(sys.executable, arguments, timeout=WITHIN, encoding="utf-8", dimensions=(40, 120))
    terminal.expect("from file 1000000.0")
    return terminal


def test_pythons_prompt(file):
    terminal = typed(["-c", PLAIN], file)
    terminal.expect(">>> ")
    for line, answer in [
        ("x = np.ones(10**6); float(x.sum())", "1000000.0"),
        ("def f(a):\n    return a + 1\n", r"\.\.\. "),
        ("f(41)", "42"),
        ("1 / 0", "ZeroDivisionError"),
        ("from mpi4py import MPI; 1 / (MPI.COMM_WORLD.rank - 1)", "rank 1 of 3:"),
        ("f(:", "SyntaxError"),
        ("x.su\t) * 2", "2000000.0"),
    ]:
        terminal.sendline(line)
        terminal.expect(answer)
        terminal.expect(">>> ")
    terminal.sendline("import time; time.sleep(60)")
    time.sleep(1)
    terminal.sendintr()
    terminal.expect("KeyboardInterrupt")
    terminal.expect(">>> ")
    terminal.sendline("name = input('name? ')")
    terminal.expect(r"name\? ")
    terminal.sendline("me")
    terminal.expect(">>> ")
    terminal.sendline("name * 2")
    terminal.expect("'meme'")
    terminal.expect(">>> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_ipythons_prompt(file):
    pytest.importorskip("IPython")
    terminal = typed(["-m", "meshcomm"], file)
    terminal.expect("In ")
    time.sleep(1)
    terminal.sendline("x = np.ones(10**6); float(x.sum()) * 2")
    terminal.expect("2000000.0")
    time.sleep(1)
    terminal.sendline("import time; time.sleep(60)")
    time.sleep(2)
    terminal.sendintr()
    terminal.expect("KeyboardInterrupt")
    time.sleep(1)
    terminal.sendline("6 * 7")
    terminal.expect("42")
    time.sleep(1)
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
