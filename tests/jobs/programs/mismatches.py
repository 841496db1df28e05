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

    def everywhere(self):
        return [self.of_rank(rank) for rank in range(self.size)]

    def is_block_of(self, tensor, whole):
        device = tensor.layout.mesh.rank
        if device is None:
            return tensor.local is None
        return np.array_equal(tensor.local, whole[tensor.layout.block_slices(whole.shape, device)])

    def _of_group(self, groups):
        """Return the arrays that the ranks of the group of this rank bring."""
        return [self.of_rank(rank) for group in groups if self.me in group for rank in group]

    def rows_to_columns(self):
        return self.is_block_of(mc.relayout(self.in_rows["a"], self.columns), self.a)

    def of_other_values(self):
        return self.is_block_of(mc.relayout(self.in_columns["b"], self.rows), self.b)

    def of_integers(self):
        return self.is_block_of(mc.relayout(self.in_rows["c"], self.columns), self.c)

    def of_another_shape(self):
        return self.is_block_of(mc.relayout(self.in_rows["d"], self.columns), self.d)

    def to_replicas(self):
        return self.is_block_of(mc.relayout(self.in_rows["b"], self.whole), self.b)

    def bounded(self):
        return self.is_block_of(mc.relayout(self.in_rows["a"], self.columns, max_scratch_bytes=4096), self.a)

    def of_many(self):
        a, b = mc.relayout([self.in_rows["a"], self.in_rows["b"]], self.columns)
        return self.is_block_of(a, self.a) and self.is_block_of(b, self.b)

    def of_large(self):
        return self.is_block_of(mc.relayout(self.in_rows["large"], self.columns), self.large)

    def large_to_replicas(self):
        return self.is_block_of(mc.relayout(self.in_rows["large"], self.whole), self.large)

    def started(self):
        return self.is_block_of(mc.start_relayout(self.in_rows["a"], self.columns).wait(), self.a)

    def started_large(self):
        return self.is_block_of(mc.start_relayout(self.in_rows["large"], self.columns).wait(), self.large)

    def executed(self):
        return self.is_block_of(self.plan.execute(self.in_rows["a"]), self.a)

    def to_numpy(self):
        return np.array_equal(self.in_columns["a"].to_numpy(), self.a)

    def to_numpy_of_one(self):
        made = self.in_columns["a"].to_numpy(root=0)
        return made is None if self.me else np.array_equal(made, self.a)

    def to_numpy_of_another(self):
        made = self.in_columns["b"].to_numpy(root=1)
        return made is None if self.me != 1 else np.array_equal(made, self.b)

    def all_to_all(self):
        parts = [np.split(array, self.size, 0)[self.me] for array in self.everywhere()]
        return np.array_equal(
            mc.all_to_all(self.block, self.everyone, 1, 0, self.size, comm=self.comm), np.concatenate(parts, axis=1)
        )

    def all_to_all_of_other_axes(self):
        parts = [np.split(array, self.size, 1)[self.me] for array in self.everywhere()]
        return np.array_equal(
            mc.all_to_all(self.block, self.everyone, 0, 1, self.size, comm=self.comm), np.concatenate(parts, axis=0)
        )

    def all_to_all_in_other_order(self):
        order = list(reversed(range(self.size)))
        parts = [np.split(self.of_rank(rank), self.size, 0)[order.index(self.me)] for rank in order]
        return np.array_equal(
            mc.all_to_all(self.block, [order], 1, 0, self.size, comm=self.comm), np.concatenate(parts, axis=1)
        )

    def all_gather(self):
        return np.array_equal(
            mc.all_gather(self.block, None, 0, comm=self.comm), np.concatenate(self.everywhere(), axis=0)
        )

    def all_gather_of_columns(self):
        return np.array_equal(
            mc.all_gather(self.block, None, 1, comm=self.comm), np.concatenate(self.everywhere(), axis=1)
        )

    def all_reduce(self):
        return np.array_equal(mc.all_reduce(self.block, None, comm=self.comm), np.sum(self.everywhere(), axis=0))

    def all_reduce_to_maximum(self):
        return np.array_equal(
            mc.all_reduce(self.block, None, "max", comm=self.comm), np.max(self.everywhere(), axis=0)
        )

    def all_reduce_of_integers(self):
        made = mc.all_reduce(self.block.astype(np.int64), None, comm=self.comm)
        return np.array_equal(made, np.sum(self.everywhere(), axis=0))

    def reduce_scatter(self):
        expected = np.split(np.sum(self.everywhere(), axis=0), self.size, 0)[self.me]
        return np.array_equal(mc.reduce_scatter(self.block, None, 0, comm=self.comm), expected)

    def broadcast(self):
        return np.array_equal(mc.broadcast(self.block, None, 0, comm=self.comm), self.of_rank(0))

    def broadcast_of_another(self):
        return np.array_equal(mc.broadcast(self.block, None, 1, comm=self.comm), self.of_rank(1))

    def permute(self):
        pairs = [(rank, (rank + 1) % self.size) for rank in range(self.size)]
        return np.array_equal(
            mc.collective_permute(self.block, pairs, comm=self.comm), self.of_rank((self.me - 1) % self.size)
        )

    def permute_of_two(self):
        expected = self.of_rank(0) if self.me == 1 else np.zeros_like(self.block)
        return np.array_equal(mc.collective_permute(self.block, [(0, 1)], comm=self.comm), expected)

    def all_to_all_along_y(self):
        arrays = self._of_group(self.along_y)
        position = [np.array_equal(array, self.block) for array in arrays].index(True)
        parts = [np.split(array, len(arrays), 0)[position] for array in arrays]
        return np.array_equal(
            mc.all_to_all(self.block, self.along_y, 1, 0, len(arrays), comm=self.comm), np.concatenate(parts, axis=1)
        )

    def all_gather_along_x(self):
        made = mc.all_gather(self.block, self.along_x, 0, comm=self.comm)
        return np.array_equal(made, np.concatenate(self._of_group(self.along_x)))

    def all_gather_along_y(self):
        made = mc.all_gather(self.block, self.along_y, 0, comm=self.comm)
        return np.array_equal(made, np.concatenate(self._of_group(self.along_y)))

    def all_gather_of_large_along_y(self):
        made = mc.all_gather(self.large + self.me, self.along_y, 0, comm=self.comm)
        shares = [self.large + rank for group in self.along_y if self.me in group for rank in group]
        return np.array_equal(made, np.concatenate(shares))

    def all_reduce_along_x(self):
        made = mc.all_reduce(self.block, self.along_x, comm=self.comm)
        return np.array_equal(made, np.sum(self._of_group(self.along_x), axis=0))

    def all_reduce_along_y(self):
        made = mc.all_reduce(self.block, self.along_y, comm=self.comm)
        return np.array_equal(made, np.sum(self._of_group(self.along_y), axis=0))

    def reduce_scatter_along_x(self):
        arrays = self._of_group(self.along_x)
        position = [np.array_equal(array, self.block) for array in arrays].index(True)
        made = mc.reduce_scatter(self.block, self.along_x, 0, comm=self.comm)
        return np.array_equal(made, np.split(np.sum(arrays, axis=0), len(arrays), 0)[position])

    def broadcast_along_x(self):
        return np.array_equal(
            mc.broadcast(self.block, self.along_x, 1, comm=self.comm), self._of_group(self.along_x)[1]
        )

    def broadcast_along_y(self):
        return np.array_equal(
            mc.broadcast(self.block, self.along_y, 0, comm=self.comm), self._of_group(self.along_y)[0]
        )

    def tiles_along_x(self):
        return self.is_block_of(mc.relayout(self.in_tiles["b"], self.on_tiles["tall"]), self.b)

    def tiles_along_y(self):
        return self.is_block_of(mc.relayout(self.in_tiles["b"], self.on_tiles["wide"]), self.b)

    def lines_along_y(self):
        return self.is_block_of(mc.relayout(self.in_lines, self.on_tiles["tall"]), self.b)

    def large_tiles_along_y(self):
        return self.is_block_of(mc.relayout(self.in_tiles["large"], self.on_tiles["wide"]), self.large)

    def started_tiles_along_x(self):
        return self.is_block_of(mc.start_relayout(self.in_tiles["b"], self.on_tiles["tall"]).wait(), self.b)

    def to_other_half(self):
        return self.is_block_of(mc.relayout(self.in_halves[0], self.halves[1]), self.b)

    def from_other_half(self):
        return self.is_block_of(mc.relayout(self.in_halves[1], self.halves[0]), self.b)

    def sum_along_x(self):
        return self.is_block_of(self.in_tiles["b"].sum(axis=0), self.b.sum(axis=0))

    def sum_along_y(self):
        return self.is_block_of(self.in_tiles["b"].sum(axis=1), self.b.sum(axis=1))

    def sum(self):
        return np.array_equal(self.in_rows["a"].sum(axis=0).local, self.a.sum(axis=0))

    def mean(self):
        return np.array_equal(self.in_rows["a"].mean(axis=0).local, self.a.mean(axis=0))

    def max(self):
        return np.array_equal(self.in_rows["a"].max(axis=0).local, self.a.max(axis=0))

    def add(self):
        made = self.in_rows["a"] + self.in_columns["b"]
        return self.is_block_of(made, self.a + self.b)

    def multiply(self):
        made = self.in_rows["a"] * self.in_columns["b"]
        return self.is_block_of(made, self.a * self.b)

    def matmul(self):
        return self.is_block_of(self.in_columns["a"] @ self.in_rows["b"], self.a @ self.b)

    def sort(self):
        return self.is_block_of(np.sort(self.in_rows["b"], axis=0), np.sort(self.b, axis=0))

    def roll(self):
        return self.is_block_of(np.roll(self.in_rows["a"], 1, axis=0), np.roll(self.a, 1, axis=0))

    def flip(self):
        return self.is_block_of(np.flip(self.in_rows["b"], axis=0), np.flip(self.b, axis=0))

    def fft(self):
        made = mc.fft.fft(self.in_rows["a"], axis=0, layout="same")
        return np.allclose(made.local, np.fft.fft(self.a, axis=0)[self.rows.block_slices(self.a.shape, self.me)])

    def _has_ghosts(self, halo, whole):
        lines = self.rows.block_slices(whole.shape, self.me)[0]
        return np.array_equal(halo.local, np.take(whole, range(lines.start - 1, lines.stop + 1), 0, mode="wrap"))

    def halo(self):
        return self._has_ghosts(mc.halo(self.in_rows["a"], {0: 1}, "periodic"), self.a)

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

    def halo_within_edges(self):
        return self._has_ghosts_within(mc.halo(self.in_rows["b"], {0: 1}), self.b, [0])

    def started_halo_within_edges(self):
        halo = mc.halo(self.in_rows["a"], {0: 1})
        halo.start_update().wait()
        return self._has_ghosts_within(halo, self.a, [0])

    def halo_of_tiles(self):
        return self._has_ghosts_within(mc.halo(self.in_tiles["b"], 1), self.b, [0, 1])

    def halo_along_y(self):
        return self._has_ghosts_within(mc.halo(self.in_tiles["b"], {1: 1}), self.b, [1])

    def gradient(self):
        return self.is_block_of(mc.gradients.relayout_vjp(self.in_columns["b"], self.in_rows["a"]), self.b)

    def variable(self):
        variable = mc.DVariable(self.in_rows["e"])
        variable.assign(mc.relayout(self.in_columns["e"], self.rows))
        return self.is_block_of(variable.value, self.e)

    def scattered(self):
        made = mc.distribute(self.b if self.me == 0 else None, self.rows, root=0)
        return self.is_block_of(made, self.b)

    def scattered_by_another(self):
        made = mc.distribute(self.a if self.me == 1 else None, self.rows, root=1)
        return self.is_block_of(made, self.a)

    def from_local(self):
        return mc.from_local(self.block, self.rows).shape == (2 * self.size**2, 2 * self.size)

    def barrier(self):
        mc.barrier(self.mesh)
        return True


HELPERS = ("of_rank", "everywhere", "is_block_of")
NAMES = [name for name in vars(Calls) if not name.startswith("_") and name not in HELPERS]
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
            if not getattr(calls, name)():
                print(f"WRONG: {name} on rank {calls.me}", flush=True)

    settle(make, first, second, mode)
    mix_up(make, first, second, mode, calls.me == int(other))
    print(f"rank {calls.me} has reached the end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
