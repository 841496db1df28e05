"""Scripts of NumPy that nobody changed, by ``run --numpy``: what they print, their errors, and their exit codes."""

import platform
import re
import sys

import pytest

from support.paths import DATA, ROOT

TABLES = ROOT / "tests" / "jobs" / "programs" / "whole_arrays.py"
PAGE = (ROOT / "docs" / "one-import.md").read_text("utf-8")
COMMAND = ("-m", "meshcomm", "run", "--numpy")
pytestmark = [pytest.mark.jobs, pytest.mark.any_mpi]

NEIGHBOUR = """\
import numpy
from numpy.linalg import norm
def scaled(x): return x / norm(x)
def bad(x): return x.reshape(7, 3)
"""

SCRIPT = """\
import sys; sys.path.append("{libraries}")
import json
import numpy as np
import numpy.linalg as la
from numpy import pi, zeros
import library
import numpy.polynomial.polynomial as P
from neighbour import scaled
print(library.name, P.polyval(2, [1, 2]))
print(np.array([len(each) for each in {'ada', 'alan', 'grace', 'kurt', 'emmy'}]).sum())
x = np.linspace(0, 1, 100_001)
print(__name__, sys.argv[1:], np.sin(2 * pi * x))
A = np.arange(12).reshape(3, 4)
A[1] = 7
A[:, 2] += A[:, 1]
for row in A:
    print(row)
print(A @ A.T, repr(scaled(A[0])), la.matrix_rank(A), [A.max()], {A[0, 0]: json.dumps(int(A.sum()))})
if x.max() > 0.5 and isinstance(x, np.ndarray):
    print(f"{x.max():.3f}", x.shape, x.dtype, zeros(3, "i4"))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    path = tmp_path / "script.py"
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    (libraries / "library.py").write_text("import numpy\nname = numpy.__name__\n")
    path.write_text(SCRIPT.replace("{libraries}", str(libraries)))
    return path


def test_it_prints_what_numpy_prints(launch, script):
    """Libraries get NumPy; sets of texts have one order on the ranks that it starts itself."""
    as_python = launch(None, script, "a", "-b")
    alone = launch(None, *COMMAND, script, "a", "-b")
    ranks = launch(None, "-m", "meshcomm", "run", "-n", "3", "--numpy", script, "a", "-b")
    assert alone.code == ranks.code == as_python.code == 0, (alone, ranks)
    assert alone.text == ranks.text == as_python.text


def test_what_is_whole_is_numpys(launch):
    """The statements of a table, of views, classes and other libraries, print what they print in NumPy."""
    program = (TABLES, DATA / "whole_arrays.txt", "12")
    expected = launch(None, *program)
    assert expected.code == 0, expected
    assert "Error" not in re.sub("(NameError|AttributeError).*", "", expected.text), expected  # a library is missing
    for ranks in (None, 2):
        ran = launch(ranks, *COMMAND, *program)
        assert (ran.code, ran.text) == (0, expected.text), ran


def test_all_ranks_see_floating_point_conditions_alike(launch):
    """The statements of a table raise, call, log, warn and record what they do in NumPy, on all ranks."""
    program = (ROOT / "tests" / "jobs" / "programs" / "conditions.py", DATA / "conditions.txt")
    expected = launch(None, *program)
    assert expected.code == 0, expected
    for ranks in (2, 3):
        ran = launch(ranks, *COMMAND, *program)
        assert (ran.code, ran.text) == (0, expected.text), ran


@pytest.mark.skipif(sys.platform != "linux", reason="ranks on a host have no signals")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_warning_of_any_rank_is_shown_once(launch, script, ranks):
    script.write_text(
        "import warnings\nimport numpy as np\nx, z = np.arange(20_000.0), np.ones(20_000)\n"
        "z[15_000] = 0\nfor _ in range(3):\n    y = x / z\n"  # a zero of another rank than 0
        "np.log(x)\n"  # of rank 0
        "np.sqrt(x[:5] - 2)\n"  # all ranks compute what is small
        "m = np.zeros((200, 200))\nm[0, 199] = m[199, 0] = 1e200\nm @ m\n"  # in a call that communicates
        "warnings.warn('of the script')\n"
    )
    shown = launch(ranks, *COMMAND, script)
    assert shown.code == 0, shown
    assert sorted(shown.text.splitlines()) == sorted(launch(None, script).text.splitlines()), shown


def test_what_is_cut_is_numpys_or_an_error(launch, tmp_path):
    """So is it for other libraries, classes, buffers and records: they get copies, and no write to one is lost."""
    rows, _, refused = (DATA / "cut_arrays.txt").read_text("utf-8").partition("\n## refused\n")
    (tmp_path / "rows.txt").write_text(rows)
    expected = launch(None, TABLES, tmp_path / "rows.txt", "20000")
    assert expected.code == 0, expected
    assert "Error" not in re.sub("NameError.*", "", expected.text), expected
    ran = launch(2, *COMMAND, TABLES, DATA / "cut_arrays.txt", "20000")
    assert ran.code == 0, ran
    assert ran.text == expected.text + refused.replace("\n    ", " "), ran


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so early")
def test_small_arrays_of_a_loop_take_no_new_memory(launch, script):
    """They are whole on each rank, as NumPy makes them: an array of 800 kB has 200 pages."""
    script.write_text(
        "import numpy as np, resource\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "x = np.ones(100_000)\n"
        "for turn in range(30):\n"
        "    before = faults() if turn == 10 else before if turn else 0\n"
        "    y = (x + 1) * (x + 2) + (x + 3) * (x + 4)\n"
        "assert type(y).__name__ == 'ndarray' and faults() - before < 500, faults() - before\n"
    )
    for ranks in (None, 2):
        ran = launch(ranks, *COMMAND, script, MESHCOMM_WHOLE_BELOW="")
        assert ran.code == 0, ran


def test_pages_are_true_of_the_size_that_programs_have(launch):
    """Tests cut smaller arrays: what pages and docstrings say is cut is so for users, too."""
    pages = ROOT / "tests" / "project" / "test_pages.py"
    shown = [f"test_pages_run_and_print_what_they_show[docs/{page}.md]" for page in ("one-import", "array-api")]
    tests = [f"{pages}::{name}" for name in (*shown, "test_programs_of_the_readme_print_what_they_show")]
    folder = ROOT / "meshcomm" / "numpy"
    job = launch(
        None, "-m", "pytest", "-q", *tests, folder / "namespace", folder / "__init__.py", MESHCOMM_WHOLE_BELOW=""
    )
    assert job.code == 0, job


def test_the_three_ways_of_the_page(launch, script):
    program, layouts = (
        each.replace("n = 2000", "n = 200") for each in re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    )
    script.write_text(program)
    expected = launch(None, script).text
    assert expected.startswith("largest 0."), expected
    ran = launch(2, *COMMAND, script)
    assert (ran.code, ran.text) == (0, expected), ran
    one_import = program.replace("import numpy as np", "import meshcomm as mc, meshcomm.numpy as np")
    beginning = next(line for line in program.splitlines() if line.startswith("u = "))
    for ranks, changed in ((2, one_import), (4, one_import.replace(beginning, layouts))):
        script.write_text(changed.replace("print(", "text = str(").rstrip() + "\nif mc.is_root():\n    print(text)\n")
        ran = launch(ranks, script)
        assert (ran.code, ran.text) == (0, expected), ran


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('in words')", 1, "in words\n"),
        ("import neighbour; neighbour.bad(np.zeros(20))", 1, "neighbour.py"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_ends_are_the_scripts(launch, script, line, code, text):
    script.write_text(f"import sys\nimport numpy as np\nprint('begun', flush=True)\n{line}\n")
    ran = launch(2, *COMMAND, script)
    assert ran.code == code, ran
    assert ran.text.count("begun") == 1, ran
    assert text in ran.text, ran
    assert "tools/cli" not in ran.text, ran


def test_an_error_of_one_rank_shows_what_it_has_printed(launch, script):
    script.write_text("import meshcomm as mc\nprint('of rank', mc.create_mesh().rank)\nif not mc.is_root(): 1 / 0\n")
    ran = launch(None, "-m", "meshcomm", "run", "-n", "2", "--numpy", script)
    assert ran.code == 1, ran
    assert "of rank 1" in ran.text, ran
    assert "ZeroDivisionError" in ran.text, ran


def test_files_that_all_ranks_write_are_found(launch, script):
    path = script.parent / "out.txt"
    script.write_text(
        "import meshcomm as mc, numpy as np\n"
        f"for _ in range(2):\n    open({str(path)!r}, 'w').close()\n"
        f"if mc.is_root():\n    open({str(path)!r} + '2', 'w').close()\n"
    )
    ran = launch(2, *COMMAND, script)
    assert ran.code == 0, ran
    assert ran.text.count("If all ranks open it") == 1, ran
    assert "out.txt' for writing, at line 3 of" in ran.text, ran


@pytest.mark.parametrize("line", ["os.urandom(8)", "str(time.perf_counter()).encode()", "tempfile.mkdtemp().encode()"])
def test_what_differs_between_ranks_is_named(launch, script, line):
    script.write_text(
        f"import os, time, tempfile, numpy as np\nx = np.frombuffer({line}, np.uint8)\n"
        "print(np.sum(np.zeros((10_000, 8)) + x[-8:]))\n"  # they are compared in a call with what is cut
    )
    ran = launch(2, *COMMAND, script)
    assert ran.code == 1, ran
    assert "CollectiveMismatch" in ran.text, ran
    assert "These differ between ranks: clocks, os.urandom" in ran.text, ran


@pytest.mark.parametrize(
    ("parted", "texts"),
    [
        ("np.seterr(all='raise')\nx / 2", ["errors and warnings in numpy.divide, at line 5 of", "sum over axes (0,)"]),
        ("np.max(x)", ["max over axes (0,)", "at line 4 of", "at line 6 of"]),
        ("sys.exit()", ["rank 1 has ended", "script.py:6"]),
    ],
)
def test_where_ranks_have_parted_the_error_says_why(launch, script, parted, texts):
    where = "\n".join(f"    {line}" for line in parted.split("\n"))
    script.write_text(
        "import sys, meshcomm as mc, numpy as np\nx = np.ones(20_000)\nif not mc.is_root():\n"
        f"{where}\n{'' if '/' in parted else chr(10)}print(np.sum(x))\n"
    )
    ran = launch(2, *COMMAND, script)
    assert ran.code != 0, ran
    for text in (*texts, "clocks, os.urandom", "np.errstate, np.seterr and filters of warnings"):
        assert text in ran.text, (text, ran)


@pytest.mark.slow
def test_random_numbers_are_the_same_on_any_number_of_ranks(launch, script):
    script.write_text(
        "import numpy as np\nnp.random.seed(1)\nprint(np.random.rand(3), np.random.normal(size=(100, 100)).max())\n"
        "rng = np.random.default_rng\nprint(rng().random() == rng().random(), sorted(np.random.permutation(4)))\n"
    )
    alone = launch(None, *COMMAND, script)
    assert alone.code == 0, alone
    assert launch(2, *COMMAND, script).text == alone.text


@pytest.mark.slow
def test_module_and_wrong_number_of_ranks(launch, script, monkeypatch):
    monkeypatch.chdir(script.parent)
    ran = launch(2, *COMMAND, "-m", "script", "a")
    assert ran.code == 0, ran
    assert "__main__ ['a']" in ran.text, ran
    wrong = launch(2, "-m", "meshcomm", "run", "-n", "2", "script.py")
    assert wrong.code == 2, wrong
    assert "this is a rank already" in wrong.text, wrong


def test_an_error_of_numpy_shows_the_program_alone(launch, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import numpy as np\na = np.ones((1000, 1000))\na[1000]\n")
    job = launch(2, *COMMAND, path)
    assert job.code == 1, job
    assert "IndexError: axis 0: index 1000 is out of bounds for 1000 elements" in job.text, job
    assert not re.search(r'File ".*\.py", line .*, in (?!<module>)', job.text), job


def test_operations_of_a_script_wait(launch, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import numpy as np\na = np.ones((2000, 1000))\nb = a * 2 + 1\nprint(b._waits, b[3, 4])\n")
    assert launch(2, *COMMAND, path).text.split() == ["True", "3.0"]


def test_warnings_of_rows_and_casts_name_the_line_of_the_script(launch, tmp_path):
    path = tmp_path / "script.py"
    lines = ("import numpy as np", "a = np.ones((400, 500))", "for i in range(40): a[i].sum()", "a[5] / 0.0")
    path.write_text("\n".join((*lines, "a[7] = np.full(500, 1j)", "(a * 1j).astype(float)", "")))
    text = launch(2, *COMMAND, path).text
    warnings = ("4", "RuntimeWarning"), ("5", "ComplexWarning"), ("6", "ComplexWarning")
    found = re.findall(r"script\.py:(\d+): (\w+Warning)", text)
    assert sorted(found) == [*warnings], text  # ranks show theirs in any order
    assert text.count("Warning:") == len(warnings), text


def test_a_script_solves_without_scalapack(launch, tmp_path):
    path = tmp_path / "script.py"
    lines = ("import numpy as np, meshcomm.linalg.scalapack as s", "s.use('none.so')", "a = 2 * np.eye(1100)")
    path.write_text("\n".join((*lines, "print(np.linalg.solve(a, np.ones(1100)).sum(), type(a).__name__)", "")))
    assert launch(2, *COMMAND, path).text.split() == ["550.0", "ndarray"]
