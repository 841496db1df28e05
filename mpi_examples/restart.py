"""A heat equation that may be killed at any time, and goes on with another number of ranks.

    mpiexec -n 4 python mpi_examples/restart.py FOLDER --kill-at 260    # killed after step 260, as by a power cut
    mpiexec -n 3 python mpi_examples/restart.py FOLDER                  # goes on from step 250

A plate of 200 x 300 cells is hot at one edge. Every 50 steps the program saves a checkpoint. When a batch system sends
SIGUSR1, it saves one more and ends. The result is the same to the last bit as without the kill: each step computes
each cell from the same numbers, however the plate is cut. Without FOLDER the program shows this by itself: it runs
once from the beginning to the end, and once with a restart on half of the ranks.
"""

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import meshcomm as mc
import meshcomm.numpy as np

SHAPE = (200, 300)
STEPS, SAVE_EVERY = 400, 50
RATE = 0.2  # of the difference between neighbours that one step evens out


def advance(plate):
    """Return the plate after one more step. Its edges stay as they are."""
    inside = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    after = plate.copy()
    after[1:-1, 1:-1] = inside + RATE * (around - 4 * inside)
    return after


def run(folder, mesh, until=STEPS, kill_at=None, pause=0.0):
    """Go on from the latest checkpoint in *folder*, if there is one, and return the plate after *until* steps."""
    step, plate = 0, np.zeros(SHAPE, layout=mc.Layout([mesh.dim_names[0], mc.UNSHARDED], mesh))
    plate[0] = 100.0
    checkpoints = mc.Checkpoints(folder, keep=2, save_on="SIGUSR1")
    with suppress(FileNotFoundError):
        step, tree = checkpoints.restore(plate.layout)
        plate = tree["plate"]
        if mesh.rank == 0:
            print(f"goes on from step {step}")
    while step < until:
        plate = advance(plate)
        step += 1
        asked = checkpoints.wanted()  # the same on all ranks, also if the signal reaches only one of them
        if asked or step % SAVE_EVERY == 0:
            checkpoints.save(step, {"plate": plate, "rate": RATE})
        if asked:
            if mesh.rank == 0:
                print(f"saved step {step}, as a signal asked")
            sys.exit()
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause)
    return plate


def digest(plate):
    """Return a text that tells plates apart, bit by bit, on every rank. Collective."""
    return hashlib.blake2b(plate.to_numpy().tobytes(), digest_size=8).hexdigest()


def restarted(folder, mesh):
    """Run once without a restart, and once with one on fewer ranks. Return whether the results are the same."""
    whole = digest(run(folder / "whole", mesh))
    run(folder / "cut", mesh, until=STEPS // 2 + 10)  # its last 10 steps are lost
    half = mc.create_mesh([("x", (mesh.size + 1) // 2)])
    plate = run(folder / "cut", half)
    same = half.rank is None or digest(plate) == whole
    if mesh.rank == 0:
        print(f"{mesh.size} ranks: {whole}; {mesh.size} ranks, then {half.size}: {digest_text(same)}")
    return same


def digest_text(same):
    """Return what to say about the second run."""
    return "the same to the last bit" if same else "ANOTHER RESULT"


def main():
    """Run what the command line asks for. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where the checkpoints are")
    parser.add_argument("--kill-at", type=int, help="kill all ranks after this step")
    parser.add_argument("--pause", type=float, default=0.0, help="wait so many seconds after each step")
    options = parser.parse_args()
    mesh = mc.create_mesh()
    if options.folder is not None:
        found = digest(run(options.folder, mesh, kill_at=options.kill_at, pause=options.pause))
        if mesh.rank == 0:
            print(f"after {STEPS} steps on {mesh.size} ranks: {found}")
        return 0
    name = list(tempfile.mkdtemp().encode().ljust(200)) if mesh.rank == 0 else [0] * 200
    folder = Path(bytes(mc.broadcast(name, None).tolist()).decode().strip())
    return 0 if restarted(folder, mesh) else 1


if __name__ == "__main__":
    sys.exit(main())
