"""The kernel for Jupyter: cells on all ranks, errors, interrupts, ends; as Jupyter's client sees them."""

import importlib
import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.jobs import mpiexec, processes_with
from support.paths import ROOT

jupyter_client = pytest.importorskip("jupyter_client")  # the extra "test" has all three, so that CI skips nothing
pytest.importorskip("ipykernel")
nbclient = pytest.importorskip("nbclient")

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec"),
    # Of Jupyter's client and of ipykernel, in the process of the tests.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MARK = "KERNEL_OF_TESTS"
"""An environment variable of all processes of a kernel."""
WITHIN = 60
"""Seconds for a cell."""
STOPS_WITHIN = 10
"""Seconds from an interrupt to the end of a cell, on busy cores."""


class Client:
    """A kernel, and what its cells show."""

    def __init__(self, folder, ranks, *options):
        install = importlib.import_module("meshcomm.tools.interactive.install")
        install.write_spec(Path(folder, "of-tests"), "of tests", ["-n", str(ranks), *options])
        specs = install.KernelSpecManager(kernel_dirs=[str(folder)])
        self.manager = jupyter_client.KernelManager(kernel_name="of-tests", kernel_spec_manager=specs)
        self.manager.start_kernel(env={**os.environ, MARK: str(folder)}, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WITHIN)
        self.folder = str(folder)

    def run(self, code, within=WITHIN, stop_after=None):
        """Run a cell and return whether it is well, and its outputs: pairs of a kind and a text or data."""
        shown = []

        def show(message):
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    shown.append((content["name"], content["text"]))
                case "execute_result" | "display_data":
                    shown.append(("data", content["data"]))
                case "error":
                    shown.append(("error", "\n".join([content["ename"], content["evalue"], *content["traceback"]])))

        if stop_after is not None:
            threading.Timer(stop_after, self.manager.interrupt_kernel).start()
        reply = self.client.execute_interactive(code, timeout=within, output_hook=show, allow_stdin=False)
        return reply["content"]["status"] == "ok", shown

    def text(self, code):
        """Return all that a cell shows that ends well, as text."""
        well, shown = self.run(code)
        assert well, shown
        return "".join(data["text/plain"] if kind == "data" else data for kind, data in shown)

    def error(self, code):
        """Return the one error that a cell shows."""
        well, shown = self.run(code)
        errors = [text for kind, text in shown if kind == "error"]
        assert not well
        assert len(errors) == 1, shown
        return errors[0]

    def processes(self):
        return processes_with(MARK, self.folder)

    def gone(self, within=WITHIN):
        """Return whether all processes of the kernel have ended."""
        end = time.monotonic() + within
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        return not self.processes()

    def close(self):
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()


@contextmanager
def started(folder, ranks, *options):
    client = Client(folder, ranks, *options)
    try:
        yield client
    finally:
        client.close()
        assert client.gone()


@pytest.fixture(scope="module", params=[1, 2, 4])
def of_numpy(request, tmp_path_factory):
    """A kernel of NumPy on some ranks, which all tests use: each finds what the others have left."""
    with started(tmp_path_factory.mktemp("kernels"), request.param, "--numpy") as client:
        client.ranks = request.param
        client.text("import numpy as np, time; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank; x = np.ones(10**6)")
        yield client


@pytest.fixture(scope="module")
def on_3(tmp_path_factory):
    with started(tmp_path_factory.mktemp("kernels"), 3, "--numpy") as client:
        client.text("import numpy as np, time; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank; x = np.ones(10**6)")
        yield client


# -- cells -----------------------------------------------------------------------------------------------------------


def test_the_cell_of_the_page(of_numpy):
    [cell] = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs" / "notebook.md").read_text(), re.MULTILINE | re.DOTALL)
    assert of_numpy.text(cell) == "np.float64(10000000.0)"
    of_numpy.text("x = np.ones(10**6)")


def test_cells_compute_with_numpys_names(of_numpy):
    assert "1000000.0" in of_numpy.text("x.sum()")
    assert of_numpy.text("class A:\n    def f(self): return float(x.sum())\n") == ""
    assert of_numpy.text("def g(n): return A().f() * n\ng(3)") == "3000000.0"
    assert of_numpy.text("import asyncio; await asyncio.sleep(0.01); 5") == "5"


def test_a_tensor_shows_its_picture_and_its_numbers(of_numpy):
    _, [(_, data)] = of_numpy.run("x")
    assert data["text/plain"] == "array([1., 1., 1., ..., 1., 1., 1.], shape=(1000000,))"
    assert ("<svg" in data.get("text/html", "")) == (of_numpy.ranks > 1)


def test_an_error_of_syntax_reaches_nobody(of_numpy):
    assert "SyntaxError" in of_numpy.error("def f(:")
    assert of_numpy.text("1 + 1") == "2"


def test_an_error_of_all_ranks_is_shown_once(of_numpy):
    assert "division by zero" in of_numpy.error("1 / 0")
    assert "of 4" not in of_numpy.error("1 / 0")


def test_much_output_and_queued_cells(of_numpy):
    assert len(of_numpy.text("print('y' * 10**7)")) == 10**7 + 1
    sent = [of_numpy.client.execute(code) for code in ("time.sleep(0.3)", "z = x.sum()")]
    replies = [of_numpy.client.get_shell_msg(timeout=WITHIN) for _ in sent]
    assert [reply["content"]["status"] for reply in replies] == ["ok", "ok"]


def test_completion_and_inspection_need_no_other_rank(of_numpy):
    assert "sum" in of_numpy.client.complete("x.su", reply=True, timeout=WITHIN)["content"]["matches"]
    assert of_numpy.client.inspect("x", reply=True, timeout=WITHIN)["content"]["found"]
    assert "1000000.0" in of_numpy.text("x.sum()")


def test_magics_that_run_code_run_it_on_all_ranks(of_numpy):
    assert "Wall time" in of_numpy.text("%%time\nx.sum()")
    assert "per loop" in of_numpy.text("%timeit -r 2 x.sum()")
    assert of_numpy.text("!echo once").strip() == "once"
    assert of_numpy.text("lines = !echo all\nlines == ['all']") == "True"
    assert "UsageError" in "".join(text for _, text in of_numpy.run("%nosuch")[1] if isinstance(text, str))


def test_a_plot_is_shown_once(of_numpy):
    pytest.importorskip("matplotlib")
    _, shown = of_numpy.run("import matplotlib.pyplot as plt\nplt.plot(x[:200]); plt.show()", within=2 * WITHIN)
    assert sum("image/png" in data for kind, data in shown if kind == "data") == 1


# -- ranks -----------------------------------------------------------------------------------------------------------


def test_magics_of_ranks(on_3):
    assert on_3.text("%%rank 1\nprint('on', rank)\nrank * 10") == "rank 1:\non 1\n10\n"
    assert on_3.text("%%each\nprint('on', rank)") == "rank 0:\non 0\nrank 1:\non 1\nrank 2:\non 2\n"
    assert len(on_3.text("%mesh").splitlines()) == 4
    assert "rank 1 only" in on_3.error("%%rank 1\nx.sum()")
    assert "1000000.0" in on_3.text("x.sum()")


def test_an_error_of_one_rank_names_it_and_leaves_all_usable(on_3):
    assert "rank 1 of 3:" in on_3.error("print('before')\nif rank == 1: {}['key']")
    assert "KeyError" in on_3.error("if rank == 1: {}['key']\nx.sum() + 1")
    assert "1000000.0" in on_3.text("x.sum()")
    assert float(on_3.text("float(np.cumsum(x)[-1])")) == 1e6


def test_a_rank_that_does_not_come_is_named(on_3):
    assert "for rank 1, which has ended the cell" in on_3.error("if rank != 1: y = np.cumsum(x * 2)")
    assert "rank 2" in on_3.error("if rank == 2: MPI.COMM_WORLD.bcast(1)\nelse: MPI.COMM_WORLD.barrier()")
    assert float(on_3.text("float((x * 2).sum())")) == 2e6


def test_warnings_of_any_rank_are_shown_once(on_3):
    text = on_3.text("y = x.copy(); y[-1] = 0; float((1 / y)[-1])")
    assert text.count("divide by zero") == 1


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "while True: pass",
        "while True: x.sum()",
        "a = np.ones((1000, 1000))\nwhile True: np.linalg.svd(a)",
        "if rank: MPI.COMM_WORLD.barrier()\nelse: time.sleep(60)",
        "MPI.COMM_WORLD.recv(source=(rank + 1) % 3)",
        "import asyncio; await asyncio.sleep(60)",
    ],
)
def test_an_interrupt_stops_all_ranks(on_3, code):
    begin = time.monotonic()
    well, shown = on_3.run(code, stop_after=1.0)
    assert not well
    assert "KeyboardInterrupt" in str(shown)
    assert time.monotonic() - begin < 1 + STOPS_WITHIN
    assert "1000000.0" in on_3.text("x.sum()")


def test_ranks_that_wait_use_little_of_a_core(on_3):
    on_3.text("import os")
    spent = [seconds(process) for process in on_3.processes()]
    time.sleep(5)
    after = [seconds(process) for process in on_3.processes()]
    assert max(b - a for a, b in zip(spent, after, strict=True)) < 0.02 * 5  # clocks of processes tick each 10 ms


def seconds(process):
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the end ---------------------------------------------------------------------------------------------------------


def test_restart_gives_a_new_job(tmp_path):
    with started(tmp_path, 2) as client:
        client.text("x = 1")
        client.manager.restart_kernel()
        client.client.wait_for_ready(timeout=WITHIN)
        assert "NameError" in client.error("x")
        client.client.execute("exit()")
        assert client.gone()


def test_a_rank_that_dies_ends_the_kernel_and_the_cell_says_why(tmp_path):
    with started(tmp_path, 3) as client:
        client.text("import os, time; from mpi4py import MPI")
        client.client.execute("if MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(30)")
        text, end = "", time.monotonic() + WITHIN
        while "meshcomm: the ranks have ended" not in text and time.monotonic() < end:
            message = client.client.get_iopub_msg(timeout=WITHIN)
            text += message["content"].get("text", "")
        assert "9" in text.partition("with code")[2]
        assert client.gone()


@pytest.mark.parametrize("who", ["launcher", "mpiexec", "rank 0"])
def test_nothing_is_left_when_one_process_is_killed(tmp_path, who):
    with started(tmp_path, 2) as client:
        client.text("import os, time")
        pid = client.manager.provisioner.process.pid
        if who == "mpiexec":
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        elif who == "rank 0":
            pid = int(client.text("os.getpid()"))
        client.client.execute("time.sleep(60)")
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        assert client.gone()


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    with started(tmp_path, 4) as client:
        nbformat = importlib.import_module("nbformat")  # nbclient needs it
        notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
        runner = nbclient.NotebookClient(notebook, km=client.manager, timeout=10 * WITHIN)
        runner.execute()
