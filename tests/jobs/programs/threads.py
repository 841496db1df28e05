"""Two threads make collective calls on one mesh: ``mpiexec -n 4 python threads.py NUMBER``.

With an odd NUMBER there are pauses, so that the threads of a rank seldom call at the same time, but one rank may let
the first thread go first and another rank the second one. A thread compares what it gets with what it should get, and
says WRONG if that is something else. The calls of the threads differ in shape: of equal calls nobody could say which
one is whose.
"""

import random
import sys
import threading
import time

import numpy as np

import meshcomm as mc

ROUNDS = 20


def work(mesh, own, pauses):
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    whole = np.arange(own * mesh.size**2.0).reshape(own * mesh.size, mesh.size) + 1000 * own
    tensor = mc.distribute(whole, rows)
    for _ in range(ROUNDS):
        if pauses:
            time.sleep(random.random() / 100)
        moved = mc.relayout(tensor, columns)
        if not np.array_equal(moved.local, whole[columns.block_slices(whole.shape, mesh.rank)]):
            print("WRONG: relayout", flush=True)
        if not np.array_equal(moved.to_numpy(), whole):
            print("WRONG: to_numpy", flush=True)
        if mc.all_reduce([own] * own, None).tolist() != [own * mesh.size] * own:
            print("WRONG: all_reduce", flush=True)


def main(number):
    meshes = [mc.create_mesh([("x", -1)]) for _ in range(2)]  # over the same ranks, which is what counts
    for own in (7, 9):  # so that all calls are known
        work(meshes[0], own, pauses=False)
    pauses = number % 2 == 1
    second = threading.Thread(target=work, args=(meshes[number % 3 == 0], 7, pauses))
    second.start()
    if pauses and number % 4 == 3:
        second.join()
    work(meshes[0], 9, pauses)
    second.join()
    print("all right\n", end="", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
