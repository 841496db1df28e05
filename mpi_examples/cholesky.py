"""Factor a covariance matrix with ScaLAPACK: mpiexec -n 4 python mpi_examples/cholesky.py [N]

The matrix has N rows, 1,000 by default. Each rank makes a block of rows. A relayout deals blocks of 64 x 64 round over
a grid of all ranks, as ScaLAPACK needs them. There pdpotrf computes the Cholesky factor L, and pdgemm the product of L
and its transpose. A relayout brings the product back to blocks of rows, where it is compared with the matrix.

It needs a ScaLAPACK: pip install mkl, or see docs/linear-algebra.md.
"""

import math
import sys
from time import perf_counter

import numpy as np
from mpi4py import MPI

import meshcomm as mc
import meshcomm.linalg.scalapack as scalapack

BLOCK = 64


def covariance(rows, columns):
    """Return these rows and columns of the matrix: points on a line, the less alike the more distant they are."""
    i, j = np.ogrid[rows, columns]
    return np.exp(-abs(i - j) / 50) + 0.1 * (i == j)


def grid_of_ranks():
    """Return a mesh over all ranks with two dimensions, as square as their number allows."""
    size = MPI.COMM_WORLD.size
    x = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    return mc.create_mesh([("x", x), ("y", size // x)])


def main(n):
    """Factor the matrix of *n* rows. Return whether the product is right, the same on every rank."""
    mesh = grid_of_ranks()
    rows = mc.Layout([("x", "y"), mc.UNSHARDED], mesh)
    dealt = mc.Layout([mc.Cyclic("x", BLOCK), mc.Cyclic("y", BLOCK)], mesh)
    matrix = mc.from_callback((n, n), float, rows, lambda slices: covariance(*slices))
    begin = perf_counter()
    factor = scalapack.cholesky(mc.relayout(matrix, dealt))
    product = mc.relayout(scalapack.matmul(factor, factor.T), rows)
    seconds = perf_counter() - begin
    residual = float(abs(product - matrix).max())  # no element of the matrix is larger than 1.1
    if mesh.rank == 0:
        x, y = mesh.shape()
        print(f"{n} x {n} on {x} x {y} ranks: L times its transpose is off by {residual:.1e}; {seconds:.2f} s")
    return residual < 1e-12


if __name__ == "__main__":
    try:
        right = main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    except ImportError as error:  # on all ranks
        if MPI.COMM_WORLD.rank == 0:
            print(error, file=sys.stderr)
        right = False
    sys.exit(not right)
