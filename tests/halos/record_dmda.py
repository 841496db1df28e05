"""Record what PETSc's DMDA does, for test_petsc.py.

It needs petsc4py: with Debian's, run ``mpiexec -n 4 python3 tests/halos/record_dmda.py tests/data/dmda.json``. The
elements of an array count from 1, and ghosts are -1 before they are filled. *local* is the block with its ghosts after
DMGlobalToLocal. *added* is the block after DMLocalToGlobal with ADD_VALUES of blocks of ones.
"""

import json
import sys
from itertools import product
from pathlib import Path


def cases():
    """Yield shapes, boundary types, widths and stencils."""
    for boundary, width in product(("NONE", "GHOSTED", "PERIODIC", "MIRROR"), (1, 2)):
        yield (9,), (boundary,), width, "BOX"
    types = ("NONE", "GHOSTED", "PERIODIC")
    for first, second, stencil, width in product(types, types, ("BOX", "STAR"), (1, 2)):
        yield (5, 8), (first, second), width, stencil


def recorded(petsc, shape, boundary, width, stencil):
    """Return what the block of this rank is. PETSc counts axes from the fastest one on."""
    import numpy as np

    size = petsc.COMM_WORLD.getSize()
    grid = [size] if len(shape) == 1 else [2, size // 2]
    da = petsc.DMDA().create(
        list(reversed(shape)),
        dof=1,
        proc_sizes=grid,
        boundary_type=tuple(getattr(petsc.DM.BoundaryType, each) for each in reversed(boundary)),
        stencil_type=getattr(petsc.DMDA.StencilType, stencil),
        stencil_width=width,
    )
    whole, local = da.createGlobalVec(), da.createLocalVec()
    ranges = [list(each) for each in reversed(da.getRanges())]
    values = np.arange(1, 1 + np.prod(shape), dtype=float).reshape(shape)
    whole.setArray(values[tuple(slice(*each) for each in ranges)].ravel())
    local.set(-1.0)
    da.globalToLocal(whole, local)
    ones, added = da.createLocalVec(), da.createGlobalVec()
    ones.set(1.0)
    added.set(0.0)
    da.localToGlobal(ones, added, addv=petsc.InsertMode.ADD_VALUES)
    return {
        "ranges": ranges,
        "ghost_ranges": [list(each) for each in reversed(da.getGhostRanges())],
        "local": [int(each) for each in local.getArray()],
        "added": [int(each) for each in added.getArray()],
    }


def main():
    """Write the file."""
    import petsc4py

    petsc4py.init()
    from petsc4py import PETSc

    comm, path = PETSc.COMM_WORLD, Path(sys.argv[1])
    mine = [recorded(PETSc, *case) for case in cases()]
    own = path.with_suffix(f".{comm.getRank()}")
    own.write_text(json.dumps(mine))
    comm.barrier()
    if comm.getRank() == 0:
        of_ranks = [json.loads(path.with_suffix(f".{rank}").read_text()) for rank in range(comm.getSize())]
        found = [
            {"shape": shape, "boundary": boundary, "width": width, "stencil": stencil, "devices": list(devices)}
            for (shape, boundary, width, stencil), *devices in zip(cases(), *of_ranks, strict=True)
        ]
        lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in found)
        version = ".".join(map(str, PETSc.Sys.getVersion()))
        path.write_text(f'{{"petsc": "{version}", "ranks": {comm.getSize()}, "cases": [\n{lines}\n]}}\n')
    comm.barrier()
    own.unlink()


if __name__ == "__main__":
    main()
