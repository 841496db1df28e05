"""Many calls, and what they leave behind: ``mpiexec -n 4 python resources.py NAME COUNT [BOUND]``.

Each rank measures what it holds after half of the calls and at the end, and prints both. BOUND is how many programs
and communicators a rank set may keep, so that few calls reach it as well.
"""

import gc
import json
import os
import sys
from itertools import cycle, islice, permutations

import numpy as np

import meshcomm as mc
from meshcomm.core.failures.launchers import launched
from meshcomm.core.ranks import rank_sets
from meshcomm.core.ranks.meshes import world_of

RANK, SIZE = launched() or (0, 1)
U = mc.UNSHARDED


def held():
    """Return how much this rank holds of what may leak."""
    gc.collect()
    with open("/proc/self/status") as status:
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "communicators": world_of(None).communicators,
        "kilobytes": kilobytes,
    }


def assignments():
    """Assignments of ranks to groups of two: 40,320 of eight ranks, all different; of four ranks 24, in turns."""
    for ranks in cycle(permutations(range(SIZE))):
        rows = [ranks[i : i + 2] for i in range(0, SIZE, 2)]
        (mine,) = (row for row in rows if RANK in row)
        assert mc.all_gather([RANK], rows, 0).tolist() == list(mine)
        yield


def relayouts():
    """Plain ones, into a tensor, bounded, several, begun and waited for, between meshes; of large and small blocks."""
    mesh, other = mc.create_mesh([("x", SIZE)]), mc.create_mesh([("x", SIZE)], devices=range(SIZE)[::-1])
    rows, columns, backwards = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh), mc.Layout(["x", U], other)
    wholes = [np.arange(5.0 * n).reshape(n, 5) for n in (7, 2000)]
    tensors = [mc.distribute(whole, rows) for whole in wholes]
    outs = [mc.zeros_like(mc.relayout(tensor, columns)) for tensor in tensors]
    while True:
        for whole, tensor, out in zip(wholes, tensors, outs, strict=True):
            found = [mc.relayout(tensor, columns)]
            yield
            found += mc.relayout([tensor, tensor], [columns, backwards])
            yield
            found.append(mc.relayout(tensor, columns, max_scratch_bytes=2**16))
            yield
            found.append(mc.start_relayout(tensor, columns).wait())
            yield
            mc.relayout(tensor, columns, out=out)
            yield
            for each in (*found, out):
                slices = each.layout.block_slices(whole.shape, each.mesh.rank)
                assert np.array_equal(each.local, whole[slices])


def meshes():
    """Each one is made, used and closed."""
    number = 0
    while True:
        number += 1
        mesh = mc.create_mesh([("x", SIZE)], devices=np.roll(range(SIZE), number).tolist())
        tensor = mc.distribute(np.arange(5), mc.Layout(["x"], mesh))
        assert mc.relayout(tensor, mc.Layout([U], mesh)).local.tolist() == [0, 1, 2, 3, 4]
        mesh.close()
        yield


def main(name, count, bound=None):
    if bound:
        rank_sets.PREPARED_PER_RANK_SET = rank_sets.GROUPS_PER_WORLD = int(bound)
    count = int(count)
    calls = globals()[name]()
    for part in ("middle", "end"):
        done = sum(1 for _ in islice(calls, count // 2))
        assert done == count // 2, f"there are only {done} more"
        print(json.dumps({"rank": RANK, "at": part, **held()}) + "\n", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
