"""Ranks that ask after each step whether a checkpoint is wanted; the ranks named on the command line get a signal.

mpiexec -n 4 python asked.py FOLDER 2 0,3     # rank 2 before its step 3, and then ranks 0 and 3 before step 6
"""

import signal
import sys
import time

import meshcomm as mc

folder, requests = sys.argv[1], [[int(rank) for rank in each.split(",")] for each in sys.argv[2:]]
mesh = mc.create_mesh()
run = mc.Checkpoints(folder, keep=None, save_on="SIGUSR1")
t = mc.zeros(mesh.size, float, mc.Layout(["x"], mesh))
for step in range(10):
    t += 1
    if step % 3 == 0 and step and mesh.rank in (requests[step // 3 - 1 : step // 3] or [[]])[0]:
        signal.raise_signal(signal.SIGUSR1)  # for this thread: its handler has run when the next line does
    if mesh.rank == step % mesh.size:
        time.sleep(0.05)  # the others wait for it in the next call, and a signal finds them there
    if run.wanted():
        run.save(step, {"t": t})
sys.stdout.write(f"rank {mesh.rank} saved {run.steps()}\n")  # in one piece, unlike print
