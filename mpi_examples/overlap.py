"""Compute the 2-D Fourier transforms of two fields: one moves while the other is computed.

Each field is sharded by rows. A rank transforms its rows of the first field and begins to exchange them for columns.
While that data moves, it transforms its rows of the second field. Then it waits for the columns of the first field.
The program compares the result with NumPy on one process. Try ``mpiexec -n 4 python mpi_examples/overlap.py``.
"""

import sys
from time import perf_counter

import numpy as np
from mpi4py import MPI

import meshcomm as mc

SHAPE = (720, 768)


def field(number, rows, columns):
    """Return these rows and columns of a smooth field with a little noise; each element depends on its index only."""
    y, x = np.meshgrid(np.arange(SHAPE[0])[rows], np.arange(SHAPE[1])[columns], indexing="ij")
    return np.sin((3 + number) * x / 50) * np.cos(y / (20 + number)) + 1e-3 * ((x * 7919 + y * 104729) % 101)


def transformed_rows(tensor):
    """Return *tensor*, sharded by rows, after the transform along its rows."""
    return mc.from_local(np.fft.fft(tensor.local, axis=1), tensor.layout, tensor.shape)


def transformed_columns(tensor):
    """Return the block of *tensor*, sharded by columns, after the transform along its columns."""
    return np.fft.fft(tensor.local, axis=0)


def one_after_the_other(fields, columns):
    """Return the transforms of both fields. Nothing is computed while data moves."""
    return [transformed_columns(mc.relayout(transformed_rows(each), columns)) for each in fields]


def overlapped(fields, columns):
    """Return the transforms of both fields. One is computed while the other moves."""
    first = mc.start_relayout(transformed_rows(fields[0]), columns)
    second = mc.start_relayout(transformed_rows(fields[1]), columns)  # transformed while the first moves
    return [transformed_columns(first.wait()), transformed_columns(second.wait())]


def slowest(seconds):
    """Return the time of the slowest rank in milliseconds."""
    return 1000 * float(mc.all_reduce([seconds], None, op="max")[0])


def main():
    """Transform both fields in both ways. Return whether the results are right, the same on every rank."""
    mesh = mc.create_mesh([("x", -1)])
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    fields = [mc.from_callback(SHAPE, float, rows, lambda slices, n=n: field(n, *slices)) for n in range(2)]
    mine = columns.block_slices(SHAPE, mesh.rank)
    expected = [np.fft.fft2(field(n, slice(None), slice(None)))[mine] for n in range(2)]
    right = np.ones(1)
    for way in (one_after_the_other, overlapped):
        way(fields, columns)  # makes plans and buffers
        MPI.COMM_WORLD.Barrier()
        begin = perf_counter()
        results = way(fields, columns)
        seconds = slowest(perf_counter() - begin)
        right[0] *= all(np.allclose(a, b) for a, b in zip(results, expected, strict=True))
        if mesh.rank == 0:
            print(f"{way.__name__.replace('_', ' ')}: {seconds:.1f} ms on {mesh.size} ranks")
    return mc.all_reduce(right, None, op="min")[0] == 1


if __name__ == "__main__":
    sys.exit(not main())
