"""The redistributions of Reference-ScaLAPACK's tests of pdgemr2d: tests/data/GEMR2D.dat, read as its driver does.

The driver is REDIST/TESTING/pdgemrdrv.c. A line has m and n, the size of the submatrix that moves, and then for the
source and for the target: the size of the matrix, the process that has its first block, the begin of the submatrix
(counted from 1), the grid, and the size of a block.
"""

from typing import NamedTuple

from support.paths import DATA


class Side(NamedTuple):
    """One side of a redistribution, in the words and the order of ScaLAPACK: rows before columns."""

    shape: tuple[int, int]
    first: tuple[int, int]
    begin: tuple[int, int]
    grid: tuple[int, int]
    block: tuple[int, int]

    @property
    def processes(self):
        return self.grid[0] * self.grid[1]


class Redistribution(NamedTuple):
    shape: tuple[int, int]
    source: Side
    target: Side

    @property
    def whole(self):
        """Whether all of the matrix moves, on both sides."""
        return all(side.shape == self.shape and side.begin == (1, 1) for side in (self.source, self.target))

    @property
    def processes(self):
        return max(self.source.processes, self.target.processes)


def redistributions():
    lines = [line for line in (DATA / "GEMR2D.dat").read_text().splitlines() if line.strip() and line[0] != "#"]
    result = []
    for line in lines[1:]:
        pairs = [tuple(pair) for pair in zip(*[iter(map(int, line.split()))] * 2, strict=True)]
        result.append(Redistribution(pairs[0], Side(*pairs[1:6]), Side(*pairs[6:])))
    assert len(result) == int(lines[0].split()[0])
    return result
