"""Heat that spreads in a square: ghosts are exchanged while the inner points are computed.

The temperature is sharded over a grid of ranks. In each step a rank begins to exchange ghosts, computes the points
that need none, waits, and computes the points at the border of its block. At all edges it is zero. It begins as
a mode of the square and a little of a faster one, so the first decays at a rate that is known. The program prints the
square a few times, and compares the rate with the known one, and the result with one process. With matplotlib it also
writes mpi_examples/output/heat.png. Try ``mpiexec -n 4 python mpi_examples/heat.py``.
"""

import sys
from pathlib import Path

import numpy as np

import meshcomm as mc

N, STEPS, PICTURES = 63, 1200, 4
RATIO = 0.2  # of the time step to the square of the distance of points; stable below 0.25
OUTPUT = Path(__file__).parent / "output"
SHADES = " .:-=+*#%@"


def initial(slices):
    """Return the temperature at these points: the slowest mode, and a tenth of a faster one."""
    y, x = np.meshgrid(*(np.pi * (np.arange(N)[each] + 1) / (N + 1) for each in slices), indexing="ij")
    return np.sin(x) * np.sin(y) + 0.1 * np.sin(5 * x) * np.sin(3 * y)


def step(local, new, rows, columns):
    """Write the next temperature at these rows and columns of a block with ghosts into *new*, which has none."""
    y, x = slice(rows.start + 1, rows.stop + 1), slice(columns.start + 1, columns.stop + 1)
    up, down = slice(y.start - 1, y.stop - 1), slice(y.start + 1, y.stop + 1)
    left, right = slice(x.start - 1, x.stop - 1), slice(x.start + 1, x.stop + 1)
    around = (local[up, x] + local[down, x]) + (local[y, left] + local[y, right])
    new[rows, columns] = local[y, x] + RATIO * (around - 4 * local[y, x])


def heated(halo, steps):
    """Advance a halo by some steps; the exchange of ghosts and the inner points overlap."""
    local, inner = halo.local, halo.inner
    height, width = inner.shape
    new = np.empty_like(inner)
    bottom, right = max(1, height - 1), max(1, width - 1)
    inside = slice(1, bottom), slice(1, right)
    borders = [
        (slice(0, 1), slice(0, width)),
        (slice(bottom, height), slice(0, width)),
        (slice(1, bottom), slice(0, 1)),
        (slice(1, bottom), slice(right, width)),
    ]
    for _ in range(steps):
        request = halo.start_update()
        step(local, new, *inside)
        request.wait()
        for border in borders:
            step(local, new, *border)
        inner[...] = new


def picture(temperature):
    """Return a square of characters, darker where it is warmer."""
    some = temperature[2::6, 1::3] / 1.1
    shades = np.clip((some * len(SHADES)).astype(int), 0, len(SHADES) - 1)
    return "\n".join("".join(SHADES[shade] for shade in row) for row in shades)


def draw(pictures):
    """Write the pictures over time, if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(pictures), figsize=(3 * len(pictures), 3))
    for axis, (number, temperature) in zip(axes, pictures, strict=True):
        axis.imshow(temperature, vmin=0, vmax=1, cmap="inferno")
        axis.set_title(f"step {number}")
        axis.axis("off")
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "heat.png")


def main():
    """Run the steps. Return whether the decay and the result are right, the same on every rank."""
    size = mc.create_mesh([("n", -1)]).size
    first = max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)
    mesh = mc.create_mesh([("y", first), ("x", size // first)])
    layout = mc.Layout(["y", "x"], mesh)
    halo = mc.halo(mc.from_callback((N, N), float, layout, initial), 1, 0.0, corners=False)
    pictures = []
    for number in range(PICTURES + 1):
        if number:
            heated(halo, STEPS // PICTURES)
        temperature = halo.tensor().to_numpy()
        pictures.append((number * STEPS // PICTURES, temperature))
        if mesh.rank == 0:
            print(f"step {pictures[-1][0]}, warmest {temperature.max():.3f}\n{picture(temperature)}\n")
    # In each step the slowest mode shrinks by this factor: sin(x) sin(y) is a mode of the differences, too.
    factor = 1 - 8 * RATIO * np.sin(np.pi / (2 * (N + 1))) ** 2
    mode = np.outer(*2 * [np.sin(np.pi * (np.arange(N) + 1) / (N + 1))])
    found = ((temperature * mode).sum() / (pictures[0][1] * mode).sum()) ** (1 / STEPS)
    alone = np.zeros((N + 2, N + 2))
    alone[1:-1, 1:-1] = pictures[0][1]
    new = np.empty((N, N))
    for _ in range(STEPS):
        step(alone, new, slice(0, N), slice(0, N))
        alone[1:-1, 1:-1] = new
    same = np.array_equal(temperature, alone[1:-1, 1:-1])
    if mesh.rank == 0:
        draw(pictures)
        print(f"the slowest mode shrinks by {found:.12f} in a step, by theory by {factor:.12f}")
        print(f"the same as on one process: {same}")
    return same and abs(found - factor) < 1e-12


if __name__ == "__main__":
    sys.exit(not main())
