"""Particles that drift over a grid of ranks: each rank has those in its part of a square, and sends on what leaves it.

The square wraps around. In each step every particle moves with its own velocity, and `mc.migrate` sends those that
have left the part of a rank to the rank that has the part where they are now. The ranks count the particles that they
have, and how often one moved. At the end, all particles are where they are without ranks. Try
``mpiexec -n 4 python mpi_examples/particles.py``.
"""

import sys

import numpy as np

import meshcomm as mc

COUNT, STEPS, DT = 20_000, 50, 0.02
PARTICLE = np.dtype([("number", "i8"), ("position", "f8", 2), ("velocity", "f8", 2)])


def all_particles():
    """Return the particles at the beginning, the same on every rank."""
    random = np.random.default_rng(7)
    particles = np.empty(COUNT, PARTICLE)
    particles["number"] = np.arange(COUNT)
    particles["position"] = random.random((COUNT, 2))
    particles["velocity"] = random.normal(size=(COUNT, 2))
    return particles


def moved(particles):
    """Return the particles one step later."""
    particles = particles.copy()
    particles["position"] = (particles["position"] + DT * particles["velocity"]) % 1.0
    return particles


def owners(particles, grid):
    """Return which device has the part of the square where each particle is; the grid is in C order."""
    rows, columns = np.minimum(particles["position"] * grid, np.array(grid) - 1).astype(int).T
    return rows * grid[1] + columns


def main():
    """Run the steps. Return whether all particles are where they belong, the same on every rank."""
    size = mc.create_mesh([("n", -1)]).size
    first = max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)
    grid = first, size // first
    mesh = mc.create_mesh([("y", grid[0]), ("x", grid[1])])
    whole = all_particles()
    mine = whole[owners(whole, grid) == mesh.rank]
    came = 0
    for _ in range(STEPS):
        mine = moved(mine)
        mine, sources = mc.migrate(mine, owners(mine, grid), mesh)
        came += np.count_nonzero(sources != mesh.rank)
        whole = moved(whole)
    expected = whole[owners(whole, grid) == mesh.rank]
    right = np.array_equal(np.sort(mine, order="number"), expected)
    right = bool(mc.all_reduce(right, op="min"))
    total, moves = mc.all_reduce([len(mine), came])
    if mesh.rank == 0:
        print(f"{total} particles on {size} ranks; in {STEPS} steps they went {moves} times to another rank")
        print(f"where they are without ranks: {right}")
    return right and total == COUNT


if __name__ == "__main__":
    sys.exit(not main())
