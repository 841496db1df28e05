"""A pair of collective calls that ranks mix up: rank 0 makes another call than the others, or one more or fewer.

``mpiexec -n N python mismatches.py FIRST SECOND MODE``. Each call compares what it gets with what it should get, and
says WRONG if that is something else. A rank that reaches the end says so.
"""

import sys

import numpy as np

import meshcomm as mc
from meshcomm.ranks.mpi import mpi

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

    def of_rank(self, rank):
        """Return the array that *rank* brings to collectives on plain arrays."""
        return np.arange(4.0 * self.size**2).reshape(2 * self.size, 2 * self.size) + 1000 * rank

    def everywhere(self):
        return [self.of_rank(rank) for rank in range(self.size)]

    def is_block_of(self, tensor, whole):
        return np.array_equal(tensor.local, whole[tensor.layout.block_slices(whole.shape, self.me)])

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


def main(first, second, mode):
    mpi()  # the start of MPI, for which a busy machine needs long, is not counted
    calls = Calls()

    def make(*names):
        for name in names:
            if not getattr(calls, name)():
                print(f"WRONG: {name} on rank {calls.me}", flush=True)

    settle(make, first, second, mode)
    mix_up(make, first, second, mode, calls.me == 0)
    print(f"rank {calls.me} has reached the end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
