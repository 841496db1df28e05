"""Halos: ``python benchmarks/halos.py`` writes build/bench/halos.md.

It takes some minutes. Ranks update the ghosts of periodic blocks: of 256 x 256 x 256 doubles on a mesh of 2 x 2 x 1
(or 2 x 1 x 1, if there are two ranks), and of 4096 x 4096 on one of 2 x 2 (or 2 x 1). Ghosts lie beside the faces of a
block, without corners. Beside meshcomm run

- *copies*: NumPy's copies of as many ghosts, from the same strides to the same strides, each rank within its block;
- *Sendrecv*: faces packed by NumPy into kept buffers, two MPI_Sendrecv for each axis, and unpacked;
- *alltoallw*: MPI_Neighbor_alltoallw on a Cartesian communicator, with subarray types, made once.

A second table has updates that are started, and three fields at once: `start_update().wait()`, three updates one after
the other, `update_halos` of the three, and MPI_Sendrecv of the faces of all three in one buffer.

Contenders take turns: in each round every one makes some calls in a row. The time of a call is that of the slowest
rank. The page has the shortest times of all rounds and their ratios, and medians and quartiles of ratios of one round.
"""

import time
from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI
from pages import Measured, main, slowest
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS = (4, 2)
CASES = {
    "256³, width 1": ((256, 256, 256), 1),
    "256³, width 2": ((256, 256, 256), 2),
    **{f"4096², width {w}": ((4096, 4096), w) for w in (1, 2, 4, 8)},
}
Pairs: TypeAlias = tuple[tuple[str, str], ...]

RATIOS: dict[str, Pairs] = {
    "contenders": (("meshcomm", "copies"), ("Sendrecv", "meshcomm"), ("alltoallw", "meshcomm")),
    "several": (("start, wait", "update"), ("3 updates", "update_halos"), ("Sendrecv of 3", "update_halos")),
}
"""For each table, the times whose ratios it has."""

CALLS = 5
"""Calls of a contender in a row."""


class Faces:
    """The faces of a block with ghosts: which slab is sent along each axis, and which is filled."""

    def __init__(self, local: Any, width: int) -> None:
        self.local, self.width, self.ndim = local, width, local.ndim

    def slab(self, axis: int, low: bool, ghosts: bool) -> tuple[slice, ...]:
        """Return the slab before (*low*) or after the block along *axis*: of ghosts, or of elements beside them."""
        w, n = self.width, self.local.shape[axis]
        where = [slice(w, -w)] * self.ndim
        if low:
            where[axis] = slice(0, w) if ghosts else slice(w, 2 * w)
        else:
            where[axis] = slice(n - w, n) if ghosts else slice(n - 2 * w, n - w)
        return tuple(where)

    def copies(self) -> None:
        """Fill the ghosts from this very block."""
        for axis in range(self.ndim):
            for low in (True, False):
                self.local[self.slab(axis, low, True)] = self.local[self.slab(axis, not low, False)]


class Sendrecv(Faces):
    """Packed messages to the neighbours, axis by axis."""

    def __init__(self, local: Any, width: int, cart: MPI.Cartcomm) -> None:
        super().__init__(local, width)
        self.cart = cart
        self.buffers = {
            (axis, low): [np.empty_like(local[self.slab(axis, low, False)], order="C") for _ in range(2)]
            for axis in range(self.ndim)
            for low in (True, False)
        }

    def update(self) -> None:
        """Exchange along each axis in both directions; an axis of one rank is wrapped by a copy."""
        local, rank = self.local, self.cart.rank
        for axis in range(self.ndim):
            before, after = self.cart.Shift(axis, 1)
            for low, to, source in ((True, before, after), (False, after, before)):
                if to == rank:
                    local[self.slab(axis, not low, True)] = local[self.slab(axis, low, False)]
                    continue
                sent, received = self.buffers[axis, low]
                sent[...] = local[self.slab(axis, low, False)]
                self.cart.Sendrecv(sent, to, int(low), received, source, int(low))
                local[self.slab(axis, not low, True)] = received


class Packed:
    """Packed messages to the neighbours, axis by axis: those of several blocks of one shape in one message."""

    def __init__(self, blocks: list[Any], width: int, cart: MPI.Cartcomm) -> None:
        self.blocks, self.faces, self.cart = blocks, Faces(blocks[0], width), cart
        shapes = [self.faces.local[self.faces.slab(axis, True, False)].shape for axis in range(blocks[0].ndim)]
        self.buffers = [[np.empty((len(blocks), *shape)) for _ in range(2)] for shape in shapes]

    def update(self) -> None:
        """Exchange along each axis in both directions; an axis of one rank is wrapped by a copy."""
        slab, rank = self.faces.slab, self.cart.rank
        for axis, (sent, received) in enumerate(self.buffers):
            before, after = self.cart.Shift(axis, 1)
            for low, to, source in ((True, before, after), (False, after, before)):
                from_face, to_ghosts = slab(axis, low, False), slab(axis, not low, True)
                if to == rank:
                    for block in self.blocks:
                        block[to_ghosts] = block[from_face]
                    continue
                for block, buffer in zip(self.blocks, sent, strict=True):
                    buffer[...] = block[from_face]
                self.cart.Sendrecv(sent, to, int(low), received, source, int(low))
                for block, buffer in zip(self.blocks, received, strict=True):
                    block[to_ghosts] = buffer


class Alltoallw(Faces):
    """One MPI_Neighbor_alltoallw with a subarray type for each face."""

    def __init__(self, local: Any, width: int, cart: MPI.Cartcomm) -> None:
        super().__init__(local, width)
        self.cart = cart
        order = [(axis, low) for axis in range(self.ndim) for low in (True, False)]
        self.types = [[self.kind(self.slab(*each, ghosts)) for each in order] for ghosts in (False, True)]
        ones, zeros = [1] * len(order), [0] * len(order)
        self.send = [local, ones, zeros, self.types[0]]
        self.receive = [local, ones, zeros, self.types[1]]

    def kind(self, where: tuple[slice, ...]) -> MPI.Datatype:
        """Return the type of a slab of the block."""
        spans = [each.indices(n) for each, n in zip(where, self.local.shape, strict=True)]
        sizes, starts = [b - a for a, b, _ in spans], [a for a, _, _ in spans]
        return MPI.DOUBLE.Create_subarray(list(self.local.shape), sizes, starts).Commit()

    def update(self) -> None:
        """Exchange all faces."""
        self.cart.Neighbor_alltoallw(self.send, self.receive)


def fields(shape: tuple[int, ...], count: int) -> tuple[list[mc.DTensor], MPI.Cartcomm]:
    """Return so many tensors of this *shape* in boxes, and MPI's communicator of the same grid. Collective."""
    dims = (2, MPI.COMM_WORLD.size // 2, 1)[: len(shape)]
    names = "xyz"[: len(shape)]
    mesh = mc.create_mesh(list(zip(names, dims, strict=True)))
    layout = mc.Layout(list(names), mesh)
    block: Any = np.random.default_rng(mesh.rank).random(layout.block_shape(shape, mesh.rank))
    cart = MPI.COMM_WORLD.Create_cart(list(dims), periods=[True] * len(dims), reorder=False)
    return [mc.from_local(block + i, layout, shape) for i in range(count)], cart


def ghosts_of(tensor: mc.DTensor, width: int) -> int:
    """Return the bytes of the ghosts beside the faces of a block."""
    block: Any = tensor.local
    return sum(2 * width * block.nbytes // n for n in block.shape)


def contenders(name: str) -> tuple[dict[str, Callable[[], object]], int]:
    """Return the calls of one case, and the bytes of the ghosts of a rank; their results are compared. Collective."""
    shape, width = CASES[name]
    (tensor,), cart = fields(shape, 1)
    halo = mc.halo(tensor, width, "periodic", corners=False)
    full = mc.halo(tensor, width, "periodic")
    assert halo.local is not None
    made = {cls.__name__: cls(halo.local.copy(), width, cart) for cls in (Sendrecv, Alltoallw)}
    for each in made.values():
        each.update()
    faces = Faces(halo.local.copy(), width)
    for axis in range(len(shape)):
        for low in (True, False):
            where = faces.slab(axis, low, True)
            for each in made.values():
                assert np.array_equal(each.local[where], halo.local[where]), (name, axis, low)
            assert np.array_equal(full.local[where], halo.local[where]), (name, axis, low)
    calls: dict[str, Callable[[], object]] = {
        "copies": faces.copies,
        "meshcomm": halo.update,
        "meshcomm, corners": full.update,
        "Sendrecv": made["Sendrecv"].update,
        "alltoallw": made["Alltoallw"].update,
    }
    return calls, ghosts_of(tensor, width)


def several(name: str) -> tuple[dict[str, Callable[[], object]], int]:
    """Return the calls of one case for updates that are started and for three fields, as `contenders`. Collective."""
    shape, width = CASES[name]
    tensors, cart = fields(shape, 3)
    halos = [mc.halo(t, width, "periodic", corners=False) for t in tensors]
    locals_: list[Any] = [halo.local for halo in halos]
    packed = Packed([local.copy() for local in locals_], width, cart)
    for copy in packed.blocks:
        for axis in range(len(shape)):
            for low in (True, False):
                copy[packed.faces.slab(axis, low, True)] = -1
    packed.update()
    for copy, local in zip(packed.blocks, locals_, strict=True):
        assert np.array_equal(copy, local), name

    def three() -> None:
        for halo in halos:
            halo.update()

    calls: dict[str, Callable[[], object]] = {
        "update": halos[0].update,
        "start, wait": lambda: halos[0].start_update().wait(),
        "3 updates": three,
        "update_halos": lambda: mc.update_halos(halos),
        "Sendrecv of 3": packed.update,
    }
    return calls, ghosts_of(tensors[0], width)


def measured(rounds: int) -> dict[str, Any]:
    """Return the bytes of each case and the seconds of each contender in each round. Collective."""
    comm, result = MPI.COMM_WORLD.Dup(), {}
    for name, made in product(CASES, (contenders, several)):
        calls, ghosts = made(name)
        times = np.empty((len(calls), rounds + 1))
        for turn in range(rounds + 1):
            for which, run in enumerate(calls.values()):
                run()
                comm.Barrier()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    run()
                times[which, turn] = (time.perf_counter() - begin) / CALLS
        seconds = dict(zip(calls, slowest(comm, times)[:, 1:].tolist(), strict=True))  # the first round is warm-up
        result[f"{name}, {made.__name__}"] = [ghosts, seconds]
    comm.Free()
    return result


def row(name: str, ghosts: int, times: dict[str, list[float]], *, pairs: Pairs) -> str:
    """Return a row of a table: the shortest times, and the ratios of *pairs*."""
    shortest = {contender: min(each) * 1e6 for contender, each in times.items()}
    ratios = " | ".join(
        f"{number(shortest[over] / shortest[under])}; "
        + spread([a / b for a, b in zip(times[over], times[under], strict=True)])
        for over, under in pairs
    )
    return f"| {name} | {number(ghosts / 1024)} | {' | '.join(map(number, shortest.values()))} | {ratios} |"


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    lines = []
    for setting in (Setting(ranks, shared) for ranks in RANKS for shared in (True, False)):
        found = measured_of(setting)
        lines += [f"{setting}", ""]
        for made, pairs in RATIOS.items():
            cases = {name: its for name, its in found.items() if name.endswith(f", {made}")}
            columns = list(next(iter(cases.values()))[1])
            ratios = [f"{over} / {under}" for over, under in pairs]
            lines.append(f"| | ghosts, KiB | {', µs | '.join(columns)}, µs | {' | '.join(ratios)} |")
            lines.append("|---" * (2 + len(columns) + len(ratios)) + "|")
            lines += [row(name.removesuffix(f", {made}"), *its, pairs=pairs) for name, its in cases.items()]
            lines.append("")
    return lines


if __name__ == "__main__":
    main("halos", __doc__, 60, measured, page)
