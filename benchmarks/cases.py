"""The relayouts that are measured, and the values in their arrays."""

import itertools
from typing import Any, NamedTuple

import numpy as np

KIB, MIB = 2**10, 2**20


class Case(NamedTuple):
    """A relayout of one tensor or of several equal ones. A layout is written as in ``x,-``."""

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    dtype: str = "f8"
    tensors: int = 1
    repeat: int = 1  # calls between two barriers
    latency: bool = False  # also measures barriers around nothing, and the bare MPI call
    ways: bool = False  # also measures meshcomm's other calls for the same: out=, start_relayout, ...
    scaling: bool = False  # a point of the plot, not a row of the table
    start: bool = False  # also measures start_relayout
    live: int = 0  # a loop of relayouts with at most this many live blocks, not one relayout
    other: str = ""  # what runs on the array instead of a relayout: collectives, fft, halos or files

    @property
    def nbytes(self) -> int:
        """Bytes of the global arrays."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize * self.tensors

    def specs(self) -> tuple[list[str], list[str]]:
        """Return the mesh dimension of each axis in the source and in the target, ``-`` for none."""
        return self.source.split(","), self.target.split(",")

    def mesh_dims(self, ranks: int) -> tuple[tuple[str, int], ...]:
        """Return one dimension of all ranks, or a grid of two rows if the layouts name two dimensions."""
        return (("x", 2), ("y", ranks // 2)) if "y" in self.source else (("x", ranks),)

    def uneven(self, ranks: int) -> bool:
        """Return whether some axis is cut into blocks of different lengths."""
        sizes = dict(self.mesh_dims(ranks))
        return any(n % sizes.get(d, 1) for specs in self.specs() for n, d in zip(self.shape, specs, strict=True))

    def moves(self) -> list[tuple[str, int, int]] | None:
        """Return (mesh dimension, its axis, its new axis) for each move, one after the other.

        Each mesh dimension moves to an axis that is whole by then. None if this case has no such moves.

        >>> Case("", (8, 8, 8), "-,x,y", "x,y,-").moves()
        [('x', 1, 0), ('y', 2, 1)]
        >>> Case("", (8, 8), "x,y", "y,x").moves() is None
        True
        """
        here, goal = self.specs()
        found = []
        while here != goal:
            free = [(d, here.index(d), to) for to, d in enumerate(goal) if d in here and here[to] == "-" != d]
            if not free:
                return None
            name, axis, to = free[0]
            here[axis], here[to] = "-", name
            found.append(free[0])
        return found

    def gathered_axis(self) -> int | None:
        """Return the only sharded axis if the target has none."""
        source, target = self.specs()
        sharded = [axis for axis, name in enumerate(source) if name != "-"]
        return sharded[0] if len(sharded) == 1 and set(target) == {"-"} else None


def table(ranks: int) -> list[Case]:
    """Return the cases of the table."""
    rows, columns = "x,-", "-,x"
    listed = [
        Case("4096² rows → columns", (4096, 4096), rows, columns, ways=True),
        Case("4096² columns → rows", (4096, 4096), columns, rows),
        Case("2048² gather rows", (2048, 2048), rows, "-,-"),
        Case("2048² gather columns", (2048, 2048), columns, "-,-"),
        Case("4099 x 4101 rows → columns, uneven", (4099, 4101), rows, columns),
        Case("4194304 x 4 f4 rows → columns", (4194304, 4), rows, columns, "f4"),
        Case("4194304 x 4 f4 columns → rows", (4194304, 4), columns, rows, "f4"),
        Case("runs of 24 bytes", (2**21 // ranks, 3 * ranks), rows, columns),
        Case("runs of 100 bytes", (2**19 // ranks, 25 * ranks), rows, columns, "f4"),
        Case("runs of 2 bytes", (2**24 // ranks, 2 * ranks), rows, columns, "u1"),
        Case("64² rows → columns", (64, 64), rows, columns, latency=True),
        Case("64² rows → columns, back to back", (64, 64), rows, columns, repeat=50, latency=True, start=True),
        Case("64 tensors of 64 KiB rows → columns", (64, 128), rows, columns, tensors=64, ways=True),
    ]
    if ranks == 4:
        listed.append(Case("4096² x,y → y,x on 2 x 2", (4096, 4096), "x,y", "y,x"))
    if ranks > 2 and ranks % 2 == 0:
        listed.append(Case("256³ x,y,- → x,-,y", (256, 256, 256), "x,y,-", "x,-,y"))
        listed.append(Case("256³ f4 -,x,y → x,y,-", (256, 256, 256), "-,x,y", "x,y,-", "f4"))
    return listed


def loops(ranks: int, full: bool = False) -> list[Case]:
    """Return loops that make and drop large blocks; without *full* fewer."""
    if full:
        return [_loop(live, mib, ranks) for live in (2, 3, 4, 5, 6) for mib in (1, 8, 34, 128, 256)]
    chosen = {2: (1, 34, 256), 3: (1, 8, 34, 128, 256), 4: (8, 34), 6: (1, 34, 256)}
    return [_loop(live, mib, ranks) for live, sizes in chosen.items() for mib in sizes]


def _loop(live: int, mib: int, ranks: int) -> Case:
    shape = (256 * ranks, 512 * mib)
    return Case(f"loop, {live} live blocks of {mib} MiB", shape, "x,-", "-,x", live=live)


def comparison(ranks: int, quick: bool = False) -> list[Case]:
    """Return what `compare.py` measures: the table, some sizes, slices, loops and *other* calls; if *quick* some."""
    sizes = [_sized(exponent) for exponent in (16, 20, 24)]
    more = [
        Case("2048² slice rows", (2048, 2048), "-,-", "x,-"),
        Case("2048² slice columns", (2048, 2048), "-,-", "-,x"),
        Case("64² collectives", (64, 64), "x,-", "-,x", repeat=50, other="collectives"),
        Case("2048² collectives", (2048, 2048), "x,-", "-,x", other="collectives"),
        Case("64² FFT and back", (64, 64), "x,-", "-,x", "c16", repeat=20, other="fft"),
        Case("128³ FFT and back", (128, 128, 128), "x,-,-", "-,x,-", "c16", other="fft"),
        Case("64² ghosts", (64, 64), "x,-", "-,x", repeat=50, other="halos"),
        Case("256³ ghosts", (256, 256, 256), "x,-,-", "-,x,-", other="halos"),
        Case("64² files", (64, 64), "x,-", "-,x", other="files"),
        Case("2048² files", (2048, 2048), "x,-", "-,x", other="files"),
    ]
    cases = [*table(ranks), *sizes, *more, *loops(ranks)]
    return [case for case in cases if not quick or case.name in QUICK]


QUICK = {
    "4096² rows → columns",
    "2048² gather columns",
    "64² rows → columns, back to back",
    "64 tensors of 64 KiB rows → columns",
    "256³ x,y,- → x,-,y",
    "rows → columns, 1 MiB",
    "2048² slice columns",
    "64² collectives",
    "64² FFT and back",
    "128³ FFT and back",
    "256³ ghosts",
    "64² files",
    "2048² files",
    "loop, 3 live blocks of 1 MiB",
    "loop, 3 live blocks of 34 MiB",
}
"""The cases of a quick comparison: one of each kind."""


def scaling(full: bool) -> list[Case]:
    """Return rows → columns of 4 KiB to 512 MiB; fewer, up to 64 MiB, without *full*."""
    exponents = [*range(12, 29, 2), 29] if full else [12, 16, 20, 24, 26]
    return [_sized(k) for k in exponents]


def _sized(exponent: int) -> Case:
    elements = exponent - 3
    shape = (2 ** (elements - elements // 2), 2 ** (elements // 2))
    return Case(f"rows → columns, {bytes_text(2**exponent)}", shape, "x,-", "-,x", scaling=True)


def bytes_text(n: int) -> str:
    """Return a number of bytes in readable form.

    >>> bytes_text(4096), bytes_text(2**29)
    ('4 KiB', '512 MiB')
    """
    return f"{n / MIB:.4g} MiB" if n >= MIB else f"{n / KIB:.4g} KiB"


def values(case: Case, box: tuple[slice, ...], seed: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the values in a box of the array: a function of the global index and of *seed*."""
    index = np.full((1,) * len(box), 7919 * seed)
    for axis, cut in enumerate(box):
        start, stop, _ = cut.indices(case.shape[axis])
        lengths = [1] * len(box)
        lengths[axis] = stop - start
        index = index * case.shape[axis] + np.arange(start, stop).reshape(lengths)
    limit = 251 if case.dtype == "u1" else 16_777_213  # exact as float32
    return (index % limit).astype(case.dtype)


def starts(n: int, blocks: int) -> list[int]:
    """Return where the blocks of numpy.array_split begin, and the end.

    >>> starts(7, 3)
    [0, 3, 5, 7]
    """
    lengths = [n // blocks + (i < n % blocks) for i in range(blocks)]
    return [0, *itertools.accumulate(lengths)]
