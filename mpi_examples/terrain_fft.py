"""Smooth real terrain with a distributed 2-D FFT: mpiexec -n 4 python mpi_examples/terrain_fft.py [PICTURE]

Each rank reads its rows of an elevation model, 344 x 403 int16, from a file, and transforms them. A relayout exchanges
rows for columns. Each rank transforms and filters its columns, and a second relayout takes them back. So every FFT
runs on whole rows or columns of one rank. All ranks together write the result to a file for `numpy.load`.
"""

import sys
from pathlib import Path
from time import perf_counter

import numpy as np
from matplotlib.cbook import get_sample_data
from mpi4py import MPI

import meshcomm as mc

try:
    from scipy import fft
except ImportError:
    from numpy import fft

SIGMA = 4.0  # of the Gaussian, in cells of the grid; a cell is 93 m from north to south and 74 m from west to east


def gaussian(n):
    """Return the factor of the filter for each frequency of an axis of *n* cells."""
    return np.exp(-2 * (np.pi * SIGMA * fft.fftfreq(n)) ** 2)


def timed_relayout(tensor, layout):
    """Return *tensor* in *layout*. Print the plan and the time of the slowest rank."""
    seconds = np.zeros(2)
    for call in range(2):  # the first call makes the plan, the second finds it
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        result = mc.relayout(tensor, layout)
        seconds[call] = perf_counter() - start
    first, again = 1000 * mc.all_reduce(seconds, None, op="max")
    if tensor.mesh.rank == 0:
        print(mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout))
        print(f"  took {first:.2f} ms, and {again:.2f} ms when called again (slowest rank)\n")
    return result


def smooth(terrain, columns):
    """Return *terrain*, sharded by rows, after the filter."""
    rows, shape = terrain.layout, terrain.shape
    t = timed_relayout(mc.from_local(fft.fft(terrain.local, axis=1), rows, shape), columns)
    along_rows, along_columns = columns.block_slices(shape, t.mesh.rank)  # the global indices of this block
    factors = np.outer(gaussian(shape[0])[along_rows], gaussian(shape[1])[along_columns])
    filtered = fft.ifft(fft.fft(t.local, axis=0) * factors, axis=0)
    t = timed_relayout(mc.from_local(filtered, columns, shape), rows)
    return mc.from_local(fft.ifft(t.local, axis=1).real, rows, shape)


def draw(before, after, path):
    """Write a picture of the terrain before and after the filter to *path*."""
    from matplotlib import pyplot as plt  # only on the rank that draws
    from matplotlib.colors import LightSource, ListedColormap, Normalize

    plt.switch_backend("Agg")
    colours = ListedColormap(plt.get_cmap("gist_earth")(np.linspace(0.3, 1, 256)))  # without the colours of the sea
    norm, light = Normalize(before.min(), before.max()), LightSource(315, 45)
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 5.6), sharey=True, layout="constrained")
    for panel, data in zip(panels, (before, after), strict=True):
        panel.imshow(light.shade(data, colours, norm, "soft", 3, dx=74, dy=93), extent=(0, 29.8, 32.0, 0))
        panel.set(title="Jacksboro fault" if data is before else f"smoothed by {SIGMA:g} cells", xlabel="east (km)")
    panels[0].set_ylabel("south (km)")
    figure.colorbar(plt.cm.ScalarMappable(norm, colours), ax=panels, label="elevation (m)", shrink=0.9, pad=0.02)
    figure.savefig(path, dpi=120)


def main(path):
    """Smooth the terrain, check and draw the result on rank 0. Return whether it is right, the same on every rank."""
    mesh = mc.create_mesh([("x", -1)])
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    before, after, error = path.with_name("elevation.npy"), path.with_name("smoothed.npy"), np.zeros(1)
    if mesh.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(before, get_sample_data("jacksboro_fault_dem.npz")["elevation"])
    mc.barrier(mesh)
    terrain = mc.load(before, rows)  # still int16; no rank ever holds the whole array
    mc.save(after, smooth(terrain, columns))
    if mesh.rank == 0:
        elevation, result = np.load(before), np.load(after)
        expected = fft.ifft2(fft.fft2(elevation) * np.outer(*map(gaussian, elevation.shape))).real
        error[0] = abs(result - expected).max() / abs(expected).max()
        draw(elevation, result, path)
        print(f"largest error relative to one process: {error[0]:.1e} on {mesh.size} ranks; picture: {path}")
    return mc.broadcast(error, None)[0] <= 1e-9


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "output" / "terrain.png")))
