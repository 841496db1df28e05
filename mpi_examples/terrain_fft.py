"""Smooth real terrain with a distributed 2-D FFT: mpiexec -n 4 python mpi_examples/terrain_fft.py [PICTURE]

Each rank reads its rows of an elevation model, 344 x 403 int16, from a file. A layout says which rows. The plan of the
transform has a layout for the spectrum, too: columns. So a rank transforms its rows, a relayout exchanges rows for
columns, and every FFT runs on whole rows or columns of one rank. The filter is a product with frequencies, which are
sharded like the spectrum, so nothing moves. All ranks together write the result to a file for `numpy.load`.
"""

import sys
from pathlib import Path
from time import perf_counter

import numpy as np
from matplotlib.cbook import get_sample_data
from mpi4py import MPI

import meshcomm as mc

SIGMA = 4.0  # of the Gaussian, in cells of the grid; a cell is 93 m from north to south and 74 m from west to east


def gaussian(along_y, along_x):
    """Return the factor of the filter for these frequencies, arrays or tensors, in waves per cell."""
    return np.exp(-2 * (np.pi * SIGMA) ** 2 * (along_y**2 + along_x**2))


def smooth(terrain, plan):
    """Return *terrain* after the filter, in its layout."""
    spectrum = plan.forward(terrain)
    along_y, along_x = mc.fft.frequencies(spectrum, s=terrain.shape, kind="rfftn")
    return plan.backward(spectrum * gaussian(along_y, along_x))


def timed_smooth(terrain):
    """Return *terrain* after the filter. Print the plan, what each rank holds, and the time of the slowest rank."""
    plan, seconds = mc.fft.plan(terrain.shape, terrain.dtype, terrain.layout), np.zeros(2)
    for call in range(2):  # the first call loads SciPy and makes plans of relayouts, the second finds them
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        result = smooth(terrain, plan)
        seconds[call] = perf_counter() - start
    first, again = 1000 * mc.all_reduce(seconds, None, op="max")
    if terrain.mesh.rank == 0:
        print(plan)
        for device in range(terrain.mesh.size):  # layouts are values: every rank knows what each device holds
            rows, _ = plan.source.block_slices(terrain.shape, device)
            _, columns = plan.target.block_slices(plan.spectrum_shape, device)
            print(
                f"  rank {device}: rows {rows.start}:{rows.stop}, then {columns.start}:{columns.stop} of the spectrum"
            )
        print(f"  took {first:.2f} ms, and {again:.2f} ms when called again (slowest rank)\n")
    return result


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
    rows = mc.Layout(["x", mc.UNSHARDED], mesh)  # axis 0 is cut along the mesh dimension x, axis 1 is not
    before, after, error = path.with_name("elevation.npy"), path.with_name("smoothed.npy"), np.zeros(1)
    if mesh.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(before, get_sample_data("jacksboro_fault_dem.npz")["elevation"])
    mc.barrier(mesh)
    terrain = mc.load(before, rows)  # still int16; no rank ever holds the whole array
    mc.save(after, timed_smooth(terrain))
    if mesh.rank == 0:
        elevation, result = np.load(before), np.load(after)
        along_y, along_x = (np.fft.fftfreq(n) for n in elevation.shape)
        expected = np.fft.ifft2(np.fft.fft2(elevation) * gaussian(along_y[:, None], along_x)).real
        error[0] = abs(result - expected).max() / abs(expected).max()
        draw(elevation, result, path)
        print(f"largest error relative to one process: {error[0]:.1e} on {mesh.size} ranks; picture: {path}")
    return mc.broadcast(error, None)[0] <= 1e-9


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "output" / "terrain.png")))
