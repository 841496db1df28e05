"""A pair of collective calls that ranks mix up: one rank makes another call than the others, or one more or fewer.

``mpiexec -n N python mismatches.py FIRST SECOND MODE OTHER``, with the rank that makes other calls. Each call compares
what it gets with what it should get, and says WRONG if that is something else. A rank that reaches the end says so.

Some calls exchange between some ranks only: along a dimension of the mesh ``tiles``, from mesh to mesh, or with the
neighbours that the edges of an array leave. The other ranks cannot notice a difference there, until a call that all
exchange in, or until the mesh is closed. What calls return until then must be right for the call that the rank made.
"""

import sys

import numpy as np

import meshcomm as mc
from meshcomm.core.ranks.mpi import mpi

MODES = ("new", "known", "swapped", "skipped", "twice", "loop")
U = mc.UNSHARDED
ROUNDS = 5


class Calls:
    """The calls, by their names, on the ranks of *comm*. All ranks make it alike."""

    def __init__(self, comm=None):
        self.comm = comm
        self.mesh = mc.create_mesh([("x", -1)], comm=comm)
        self.me, self.size = self.mesh.rank, self.mesh.size
        self.everyone = [list(range(self.size))]
        self.rows, self.columns = mc.Layout(["x", U], self.mesh), mc.Layout([U, "x"], self.mesh)
        self.whole = mc.Layout.replicated(self.mesh, 2)
        n = 4 * self.size
        self.a = np.arange(n * n, dtype=np.float64).reshape(n, n)
        self.b = -self.a - 1
        self.c = self.a.astype(np.int64)
        self.d = self.a.reshape(n // 2, 2 * n) + 0.5
        self.e = self.b.astype(np.float32)
        self.large = np.arange(512 * 512.0).reshape(512, 512)
        self.in_rows = {name: mc.distribute(getattr(self, name), self.rows) for name in "abcde"}
        self.in_rows["large"] = mc.distribute(self.large, self.rows)
        self.in_columns = {name: mc.distribute(getattr(self, name), self.columns) for name in "abe"}
        self.plan = mc.plan_relayout(self.a.shape, self.a.dtype, self.rows, self.columns)
        self.block = self.of_rank(self.me)
        self._make_tiles()
        self._make_halves()

    def _make_tiles(self):
        """Make a mesh of two dimensions, one of them with all ranks if they are 2 or an odd number."""
        self.tiles = mc.create_mesh([("x", -1), ("y", ranks_along_y(self.size))], comm=self.comm)
        # Not one of them is the group of all ranks in their order.
        self.along_x = [group[::-1] for group in self.tiles.groups_along("x")]
        self.along_y = self.tiles.groups_along("y")
        specs = {"tiles": ["x", "y"], "tall": [U, "y"], "wide": ["x", U], "lines": ["y", U]}
        self.on_tiles = {name: mc.Layout(spec, self.tiles) for name, spec in specs.items()}
        self.in_tiles = {name: mc.distribute(getattr(self, name), self.on_tiles["tiles"]) for name in ("b", "large")}
        self.in_lines = mc.distribute(self.b, self.on_tiles["lines"])

    def _make_halves(self):
        """Make a layout on the first half of the ranks, and one on the others."""
        ranks = range(self.size)
        halves = list(ranks[: self.size // 2]), list(ranks[self.size // 2 :])
        self.halves = [
            mc.Layout(["x", U], mc.create_mesh([("x", -1)], devices=half, comm=self.comm)) for half in halves
        ]
        self.in_halves = [mc.distribute(self.b, half) for half in self.halves]

    def of_rank(self, rank):
        """Return the array that *rank* brings to collectives on plain arrays."""
        return np.arange(4.0 * self.size**2).reshape(2 * self.size, 2 * self.size) + 1000 * rank

    def of_all_ranks(self):
        return [self.of_rank(rank) for rank in range(self.size)]

    def is_right(self, name):
        """Make the call *name*, and return whether it gives what it should."""
        return CALLS[name](self) if name in CALLS else getattr(self, name)()

    def is_block_of(self, tensor, whole):
        device = tensor.layout.mesh.rank
        if device is None:
            return tensor.local is None
        return np.array_equal(tensor.local, whole[tensor.layout.block_slices(whole.shape, device)])

    def _of_group(self, groups):
        """Return the arrays that the ranks of the group of this rank bring."""
        return [self.of_rank(rank) for group in groups if self.me in group for rank in group]

    def of_many(self):
        a, b = mc.relayout([self.in_rows["a"], self.in_rows["b"]], self.columns)
        return self.is_block_of(a, self.a) and self.is_block_of(b, self.b)

    def to_numpy_of_one(self):
        made = self.in_columns["a"].to_numpy(root=0)
        return made is None if self.me else np.array_equal(made, self.a)

    def to_numpy_of_another(self):
        made = self.in_columns["b"].to_numpy(root=1)
        return made is None if self.me != 1 else np.array_equal(made, self.b)

    def all_to_all_in_other_order(self):
        order = list(reversed(range(self.size)))
        parts = [np.split(self.of_rank(rank), self.size, 0)[order.index(self.me)] for rank in order]
        return np.array_equal(
            mc.all_to_all(self.block, [order], 1, 0, self.size, comm=self.comm), np.concatenate(parts, axis=1)
        )

    def all_to_all_along_y(self):
        arrays = self._of_group(self.along_y)
        position = [np.array_equal(array, self.block) for array in arrays].index(True)
        parts = [np.split(array, len(arrays), 0)[position] for array in arrays]
        return np.array_equal(
            mc.all_to_all(self.block, self.along_y, 1, 0, len(arrays), comm=self.comm), np.concatenate(parts, axis=1)
        )

    def all_gather_of_large_along_y(self):
        made = mc.all_gather(self.large + self.me, self.along_y, 0, comm=self.comm)
        shares = [self.large + rank for group in self.along_y if self.me in group for rank in group]
        return np.array_equal(made, np.concatenate(shares))

    def reduce_scatter_along_x(self):
        arrays = self._of_group(self.along_x)
        position = [np.array_equal(array, self.block) for array in arrays].index(True)
        made = mc.reduce_scatter(self.block, self.along_x, 0, comm=self.comm)
        return np.array_equal(made, np.split(np.sum(arrays, axis=0), len(arrays), 0)[position])

    def _has_ghosts(self, halo, whole):
        lines = self.rows.block_slices(whole.shape, self.me)[0]
        return np.array_equal(halo.local, np.take(whole, range(lines.start - 1, lines.stop + 1), 0, mode="wrap"))

    def halos(self):
        halos = [mc.halo(self.in_rows[name], {0: 1}, "periodic") for name in "ab"]
        mc.update_halos(halos)
        return self._has_ghosts(halos[0], self.a) and self._has_ghosts(halos[1], self.b)

    def started_halo(self):
        halo = mc.halo(self.in_rows["b"], {0: 1}, "periodic")
        halo.start_update().wait()
        return self._has_ghosts(halo, self.b)

    def _has_ghosts_within(self, halo, whole, axes):
        slices = list(halo.layout.block_slices(whole.shape, self.me))
        for axis in axes:
            slices[axis] = slice(max(slices[axis].start - 1, 0), slices[axis].stop + 1)
        return np.array_equal(halo.local, whole[tuple(slices)])

    def started_halo_within_edges(self):
        halo = mc.halo(self.in_rows["a"], {0: 1})
        halo.start_update().wait()
        return self._has_ghosts_within(halo, self.a, [0])

    def variable(self):
        variable = mc.DVariable(self.in_rows["e"])
        variable.assign(mc.relayout(self.in_columns["e"], self.rows))
        return self.is_block_of(variable.value, self.e)

    def barrier(self):
        mc.barrier(self.mesh)
        return True


CALLS = {
    "rows_to_columns": lambda its: its.is_block_of(mc.relayout(its.in_rows["a"], its.columns), its.a),
    "of_other_values": lambda its: its.is_block_of(mc.relayout(its.in_columns["b"], its.rows), its.b),
    "of_integers": lambda its: its.is_block_of(mc.relayout(its.in_rows["c"], its.columns), its.c),
    "of_another_shape": lambda its: its.is_block_of(mc.relayout(its.in_rows["d"], its.columns), its.d),
    "to_replicas": lambda its: its.is_block_of(mc.relayout(its.in_rows["b"], its.whole), its.b),
    "bounded": lambda its: its.is_block_of(mc.relayout(its.in_rows["a"], its.columns, max_scratch_bytes=4096), its.a),
    "of_large": lambda its: its.is_block_of(mc.relayout(its.in_rows["large"], its.columns), its.large),
    "large_to_replicas": lambda its: its.is_block_of(mc.relayout(its.in_rows["large"], its.whole), its.large),
    "started": lambda its: its.is_block_of(mc.start_relayout(its.in_rows["a"], its.columns).wait(), its.a),
    "started_large": lambda its: its.is_block_of(
        mc.start_relayout(its.in_rows["large"], its.columns).wait(), its.large
    ),
    "executed": lambda its: its.is_block_of(its.plan.execute(its.in_rows["a"]), its.a),
    "to_numpy": lambda its: np.array_equal(its.in_columns["a"].to_numpy(), its.a),
    "all_to_all": lambda its: np.array_equal(
        mc.all_to_all(its.block, its.everyone, 1, 0, its.size, comm=its.comm),
        np.concatenate([np.split(array, its.size, 0)[its.me] for array in its.of_all_ranks()], axis=1),
    ),
    "all_to_all_of_other_axes": lambda its: np.array_equal(
        mc.all_to_all(its.block, its.everyone, 0, 1, its.size, comm=its.comm),
        np.concatenate([np.split(array, its.size, 1)[its.me] for array in its.of_all_ranks()], axis=0),
    ),
    "all_gather": lambda its: np.array_equal(
        mc.all_gather(its.block, None, 0, comm=its.comm), np.concatenate(its.of_all_ranks(), axis=0)
    ),
    "all_gather_of_columns": lambda its: np.array_equal(
        mc.all_gather(its.block, None, 1, comm=its.comm), np.concatenate(its.of_all_ranks(), axis=1)
    ),
    "all_reduce": lambda its: np.array_equal(
        mc.all_reduce(its.block, None, comm=its.comm), np.sum(its.of_all_ranks(), axis=0)
    ),
    "all_reduce_to_maximum": lambda its: np.array_equal(
        mc.all_reduce(its.block, None, "max", comm=its.comm), np.max(its.of_all_ranks(), axis=0)
    ),
    "all_reduce_of_integers": lambda its: np.array_equal(
        mc.all_reduce(its.block.astype(np.int64), None, comm=its.comm), np.sum(its.of_all_ranks(), axis=0)
    ),
    "reduce_scatter": lambda its: np.array_equal(
        mc.reduce_scatter(its.block, None, 0, comm=its.comm),
        np.split(np.sum(its.of_all_ranks(), axis=0), its.size, 0)[its.me],
    ),
    "broadcast": lambda its: np.array_equal(mc.broadcast(its.block, None, 0, comm=its.comm), its.of_rank(0)),
    "broadcast_of_another": lambda its: np.array_equal(
        mc.broadcast(its.block, None, 1, comm=its.comm), its.of_rank(1)
    ),
    "permute": lambda its: np.array_equal(
        mc.collective_permute(its.block, [(rank, (rank + 1) % its.size) for rank in range(its.size)], comm=its.comm),
        its.of_rank((its.me - 1) % its.size),
    ),
    "permute_of_two": lambda its: np.array_equal(
        mc.collective_permute(its.block, [(0, 1)], comm=its.comm),
        its.of_rank(0) if its.me == 1 else np.zeros_like(its.block),
    ),
    "all_gather_along_x": lambda its: np.array_equal(
        mc.all_gather(its.block, its.along_x, 0, comm=its.comm), np.concatenate(its._of_group(its.along_x))
    ),
    "all_gather_along_y": lambda its: np.array_equal(
        mc.all_gather(its.block, its.along_y, 0, comm=its.comm), np.concatenate(its._of_group(its.along_y))
    ),
    "all_reduce_along_x": lambda its: np.array_equal(
        mc.all_reduce(its.block, its.along_x, comm=its.comm), np.sum(its._of_group(its.along_x), axis=0)
    ),
    "all_reduce_along_y": lambda its: np.array_equal(
        mc.all_reduce(its.block, its.along_y, comm=its.comm), np.sum(its._of_group(its.along_y), axis=0)
    ),
    "broadcast_along_x": lambda its: np.array_equal(
        mc.broadcast(its.block, its.along_x, 1, comm=its.comm), its._of_group(its.along_x)[1]
    ),
    "broadcast_along_y": lambda its: np.array_equal(
        mc.broadcast(its.block, its.along_y, 0, comm=its.comm), its._of_group(its.along_y)[0]
    ),
    "tiles_along_x": lambda its: its.is_block_of(mc.relayout(its.in_tiles["b"], its.on_tiles["tall"]), its.b),
    "tiles_along_y": lambda its: its.is_block_of(mc.relayout(its.in_tiles["b"], its.on_tiles["wide"]), its.b),
    "lines_along_y": lambda its: its.is_block_of(mc.relayout(its.in_lines, its.on_tiles["tall"]), its.b),
    "large_tiles_along_y": lambda its: its.is_block_of(
        mc.relayout(its.in_tiles["large"], its.on_tiles["wide"]), its.large
    ),
    "started_tiles_along_x": lambda its: its.is_block_of(
        mc.start_relayout(its.in_tiles["b"], its.on_tiles["tall"]).wait(), its.b
    ),
    "to_other_half": lambda its: its.is_block_of(mc.relayout(its.in_halves[0], its.halves[1]), its.b),
    "from_other_half": lambda its: its.is_block_of(mc.relayout(its.in_halves[1], its.halves[0]), its.b),
    "sum_along_x": lambda its: its.is_block_of(its.in_tiles["b"].sum(axis=0), its.b.sum(axis=0)),
    "sum_along_y": lambda its: its.is_block_of(its.in_tiles["b"].sum(axis=1), its.b.sum(axis=1)),
    "sum": lambda its: np.array_equal(its.in_rows["a"].sum(axis=0).local, its.a.sum(axis=0)),
    "mean": lambda its: np.array_equal(its.in_rows["a"].mean(axis=0).local, its.a.mean(axis=0)),
    "max": lambda its: np.array_equal(its.in_rows["a"].max(axis=0).local, its.a.max(axis=0)),
    "add": lambda its: its.is_block_of(its.in_rows["a"] + its.in_columns["b"], its.a + its.b),
    "multiply": lambda its: its.is_block_of(its.in_rows["a"] * its.in_columns["b"], its.a * its.b),
    "matmul": lambda its: its.is_block_of(its.in_columns["a"] @ its.in_rows["b"], its.a @ its.b),
    "sort": lambda its: its.is_block_of(np.sort(its.in_rows["b"], axis=0), np.sort(its.b, axis=0)),
    "roll": lambda its: its.is_block_of(np.roll(its.in_rows["a"], 1, axis=0), np.roll(its.a, 1, axis=0)),
    "flip": lambda its: its.is_block_of(np.flip(its.in_rows["b"], axis=0), np.flip(its.b, axis=0)),
    "fft": lambda its: np.allclose(
        mc.fft.fft(its.in_rows["a"], axis=0, layout="same").local,
        np.fft.fft(its.a, axis=0)[its.rows.block_slices(its.a.shape, its.me)],
    ),
    "halo": lambda its: its._has_ghosts(mc.halo(its.in_rows["a"], {0: 1}, "periodic"), its.a),
    "halo_within_edges": lambda its: its._has_ghosts_within(mc.halo(its.in_rows["b"], {0: 1}), its.b, [0]),
    "halo_of_tiles": lambda its: its._has_ghosts_within(mc.halo(its.in_tiles["b"], 1), its.b, [0, 1]),
    "halo_along_y": lambda its: its._has_ghosts_within(mc.halo(its.in_tiles["b"], {1: 1}), its.b, [1]),
    "gradient": lambda its: its.is_block_of(mc.gradients.relayout_vjp(its.in_columns["b"], its.in_rows["a"]), its.b),
    "scattered": lambda its: its.is_block_of(mc.distribute(its.b if its.me == 0 else None, its.rows, root=0), its.b),
    "scattered_by_another": lambda its: its.is_block_of(
        mc.distribute(its.a if its.me == 1 else None, its.rows, root=1), its.a
    ),
    "from_local": lambda its: mc.from_local(its.block, its.rows).shape == (2 * its.size**2, 2 * its.size),
}
"""Calls that are one expression: what each gives is right. Others are methods of `Calls`."""
HELPERS = ("of_rank", "of_all_ranks", "is_block_of", "is_right")
NAMES = [*CALLS, *(name for name in vars(Calls) if not name.startswith("_") and name not in HELPERS)]
LOCAL_ALONE = ("sum_along_y",)  # Local where each rank is alone along y; ranks compare the other calls all the same


def ranks_along_y(size):
    """Return how many ranks of the mesh ``tiles`` exchange along y: 1 means that each one is alone."""
    return 2 if size > 2 and size % 2 == 0 else 1


def names(size):
    """Return the names of the calls that are Collective on *size* ranks."""
    return [name for name in NAMES if ranks_along_y(size) > 1 or name not in LOCAL_ALONE]


def settle(make, first, second, mode):
    """Make calls on which ranks agree, so that they are known, unless they are to be new."""
    if mode != "new":
        for _ in range(2):
            make(first, second)


def mix_up(make, first, second, mode, other):
    """Make calls that differ between ranks: an *other* rank makes other ones."""
    if mode in ("new", "known"):
        make(first if other else second)
    elif mode == "swapped":
        make(*((first, second) if other else (second, first)))
    elif mode == "skipped":
        make(*((first, second) if other else (second,)))
    elif mode == "twice":
        make(*((first, first, second) if other else (first, second)))
    else:
        for turn in range(ROUNDS):
            make(first, *((second,) if not other or turn != ROUNDS // 2 else ()))


def main(first, second, mode, other):
    mpi()  # the start of MPI, for which a busy machine needs long, is not counted
    calls = Calls()

    def make(*names):
        for name in names:
            if not calls.is_right(name):
                print(f"WRONG: {name} on rank {calls.me}", flush=True)

    settle(make, first, second, mode)
    mix_up(make, first, second, mode, calls.me == int(other))
    print(f"rank {calls.me} has reached the end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
