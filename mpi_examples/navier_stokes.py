"""Solve the Navier-Stokes equations with Fourier transforms, from the vortices of Taylor and Green.

    mpiexec -n 4 python mpi_examples/navier_stokes.py                                   # 2-D
    mpiexec -n 4 python mpi_examples/navier_stokes.py --dimensions 3 --pencils          # 3-D, cut along two axes
    mpiexec -n 4 python mpi_examples/navier_stokes.py --picture vorticity.png
    mpiexec -n 4 python mpi_examples/navier_stokes.py --series flow.nc                  # for xarray, and to go on from

The flow is periodic in a box of length 2 pi. The program keeps the spectrum of the velocity. Derivatives are products
with wave numbers, which are sharded like the spectrum: nothing moves. Products of fields are computed on a grid. One
call of the plan takes all fields there, with one exchange for each relayout, and one call takes the products back. The
grid has 3/2 as many points as the spectrum has waves along each axis, so products have no aliases. With --mask, the
grid is not finer, and waves above 2/3 of its limit stay zero. Each step in time is a Runge-Kutta step of order 4.

With --series, the velocity after each step goes to a file, behind what is there. If the job is killed, start it again
with any number of ranks: it goes on from the last step in the file.

The program checks itself, and exits with status 1 if a check fails:

- The flow has no sources, and loses as much energy per time as friction takes: 2 nu times the enstrophy.
- In 2-D, vortices drift with a wind, and their velocity is that of the exact solution: it decays as exp(-2 nu t).
- In 3-D, the enstrophy at early times is that of the power series in G. I. Taylor and A. E. Green, "Mechanism of the
  production of small eddies from large ones", Proc. R. Soc. A 158, 1937. Exact arithmetic gave the same coefficients.
"""

import argparse
import math
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import meshcomm as mc

WIND = {2: (1.0, 0.5), 3: (0.0, 0.0, 0.0)}  # the mean velocity, by the dimensions of space


def layout_of(dimensions, *, pencils):
    """Return the layout of a field on a mesh of all ranks: slabs, or pencils, which are cut along two axes."""
    size = mc.create_mesh().size
    x = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0) if pencils else 1
    mesh = mc.create_mesh([("x", x), ("y", size // x)] if pencils else [("x", size)])
    names = ["x", "y"] if pencils else ["x"]
    return mc.Layout(names + [mc.UNSHARDED] * (dimensions - len(names)), mesh)


def vortices(points, nu, t):
    """Return the velocity at these points: an exact solution in 2-D, and the initial state in 3-D, for t = 0."""
    wind = WIND[len(points)]
    x, y, *z = (point - speed * t for point, speed in zip(points, wind, strict=True))
    strength = math.exp(-2 * nu * t) * np.cos(z[0]) if z else math.exp(-2 * nu * t)
    vortex = [np.sin(x) * np.cos(y) * strength, -np.cos(x) * np.sin(y) * strength, *(0 * x * y * each for each in z)]
    return [speed + velocity for speed, velocity in zip(wind, vortex, strict=True)]


class Flow:
    """The equations of a flow in a periodic box, for spectra of *n* waves along each axis.

    Parameters
    ----------
    n: the waves along each axis; the largest wave number is below n / 2, or below n / 3 with a mask
    layout: of fields on the grid
    nu: the viscosity
    mask: whether high waves stay zero; else the grid has 3/2 times n points along each axis
    """

    def __init__(self, n, layout, nu, *, mask=False):
        self.nu, self.dimensions = nu, layout.ndim
        self.shape, self.grid = (n,) * layout.ndim, (n if mask else 3 * n // 2,) * layout.ndim
        self.plan = mc.fft.plan(self.grid, float, layout, kind="rfftn", norm="forward")
        spectrum = self.to_waves(self.velocity(0.0))[0]
        found = mc.fft.frequencies(spectrum, d=1 / n, s=self.shape, kind="rfftn")
        self.k = [np.rint(each) for each in found]  # whole numbers, along one axis each
        self.k_squared = sum(k**2 for k in self.k)
        self.inverse = 1 / np.where(self.k_squared == 0, 1.0, self.k_squared)
        kept = math.prod(abs(k) < n / (3 if mask else 2) for k in self.k)
        self.kept = kept * 1.0  # 1 for the waves that are computed, else 0
        self.weight = kept * np.where(self.k[-1] == 0, 1.0, 2.0)  # half of the spectrum stands for all of it

    def velocity(self, t):
        """Return the velocity of the vortices at time *t*, on the grid."""
        steps, layout = [2 * math.pi / n for n in self.grid], self.plan.source

        def component(i, slices):
            points = [step * points for step, points in zip(steps, np.ogrid[slices], strict=True)]
            return np.array(vortices(points, self.nu, t)[i])

        return [
            mc.from_callback(self.grid, float, layout, lambda slices, i=i: component(i, slices))
            for i in range(self.dimensions)
        ]

    def to_waves(self, fields):
        """Return the spectra of fields on the grid. Collective."""
        return self.resized(mc.fft.crop_spectrum, self.plan.forward(fields), self.grid, self.shape)

    def to_grid(self, spectra):
        """Return the fields of some spectra on the grid. Collective."""
        return self.plan.backward(self.resized(mc.fft.pad_spectrum, spectra, self.shape, self.grid))

    def resized(self, function, spectra, was, shape):
        """Return the spectra of fields on a grid of another *shape*: stacked, they move together. Collective."""
        if was == shape:
            return spectra
        axes = range(1, 1 + self.dimensions)
        stacked = function(np.stack(spectra), shape, axes=axes, kind="rfftn", was=was, norm="forward")
        return [stacked[i] for i in range(len(spectra))]

    def curl(self, u):
        """Return the spectrum of the vorticity: one component in 2-D, three in 3-D."""
        k = self.k
        if self.dimensions == 2:
            return [1j * (k[0] * u[1] - k[1] * u[0])]
        return [1j * (k[i - 2] * u[i - 1] - k[i - 1] * u[i - 2]) for i in range(3)]

    def divergence(self, u):
        """Return the spectrum of the sources of a flow, without the factor 1j."""
        return sum(k * component for k, component in zip(self.k, u, strict=True))

    def rate(self, u):
        """Return the rate of change of *u*: the vortex force without its sources, and friction. Collective."""
        fields = self.to_grid([*u, *self.curl(u)])
        force = self.to_waves(cross(fields[: self.dimensions], fields[self.dimensions :]))
        pressure = self.divergence(force) * self.inverse
        friction = self.nu * self.k_squared
        return [self.kept * (f - k * pressure) - friction * v for f, k, v in zip(force, self.k, u, strict=True)]

    def step(self, u, dt):
        """Return the velocity after a step of time *dt*. Collective."""
        first = self.rate(u)
        second = self.rate(added(u, first, dt / 2))
        third = self.rate(added(u, second, dt / 2))
        fourth = self.rate(added(u, third, dt))
        rates = zip(first, second, third, fourth, strict=True)
        return added(u, [a + 2 * (b + c) + d for a, b, c, d in rates], dt / 6)

    def product(self, u, v):
        """Return the mean over the box of the scalar product of two vector fields, from their spectra. Collective."""
        return float(sum(np.sum(self.weight * (np.conj(a) * b).real) for a, b in zip(u, v, strict=True)))

    def energy(self, u):
        """Return the mean kinetic energy. Collective."""
        return self.product(u, u) / 2

    def enstrophy(self, u):
        """Return half the mean square of the vorticity. Collective."""
        vorticity = self.curl(u)
        return self.product(vorticity, vorticity) / 2


def added(u, rates, dt):
    """Return *u* plus *dt* times its rates of change."""
    return [a + dt * b for a, b in zip(u, rates, strict=True)]


def cross(u, vorticity):
    """Return the vortex force, the vector product of the velocity and the vorticity."""
    if len(u) == 2:
        return [u[1] * vorticity[0], -u[0] * vorticity[0]]
    return [u[i - 2] * vorticity[i - 1] - u[i - 1] * vorticity[i - 2] for i in range(3)]


def series(nu, t):
    """Return the enstrophy of the 3-D vortices at an early time, and the size of the last two terms of the series."""
    terms = [
        1,
        -6 * nu,
        5 / 48 + 18 * nu**2,
        -(5 / 3 + 36 * nu**2) * nu,
        25 / 3168 + 1835 / 144 * nu**2 + 54 * nu**4,
        -(361 / 1408 + 761 / 12 * nu**2 + 324 / 5 * nu**4) * nu,
    ]
    terms = [3 / 8 * term * t**power for power, term in enumerate(terms)]
    return sum(terms), abs(terms[-1]) + abs(terms[-2])


class Checks:
    """Named errors with their limits, which are the same on every rank."""

    def __init__(self, mesh):
        self.mesh, self.right = mesh, True

    def __call__(self, what, error, limit):
        """Print an error on one rank, and remember whether it is within its limit."""
        right = error <= limit  # False if it is not a number
        self.right = self.right and right
        if self.mesh.rank == 0:
            print(f"{'right' if right else 'WRONG'}: {what}: {error:.1e}, at most {limit:.0e}")


def check(flow, u, t, checks):
    """Check the velocity *u* at time *t*, and return the energy and the enstrophy. Collective."""
    energy, enstrophy, change = flow.energy(u), flow.enstrophy(u), flow.product(u, flow.rate(u))
    largest = float(max(abs(component).max() for component in u))
    checks("sources of the flow, relative to its speed", float(abs(flow.divergence(u)).max()) / largest, 1e-12)
    error = abs(change + 2 * flow.nu * enstrophy) / enstrophy
    checks("energy lost per time, from 2 nu times the enstrophy", error, 1e-12)
    if flow.dimensions == 2:
        wind = sum(speed**2 for speed in WIND[2]) / 2
        expected = math.exp(-4 * flow.nu * t) / 4
        checks("energy of the vortices, from exp(-4 nu t) / 4", abs(energy - wind - expected) / expected, 1e-6)
        pairs = zip(flow.to_grid(u), flow.velocity(t), strict=True)
        error = float(max(abs(found - exact).max() for found, exact in pairs))
        checks("velocity, from the exact solution", error, 1e-6)
    return energy, enstrophy


def snapshots_in(path, flow):
    """Return the series of velocities in the file at *path*. Collective."""
    names = [f"u{i}" for i in range(flow.dimensions)]
    dims = ["x", "y", "z"][: flow.dimensions]
    layouts = dict.fromkeys(names, flow.plan.source)
    return mc.Series(path, layouts, shape=flow.grid, dtype=float, dims=dims, metadata={"viscosity": flow.nu})


def last_of(snapshots, flow):
    """Return the spectrum of the last velocity in the series, and its time. Collective."""
    last = snapshots[-1]
    return flow.to_waves([last[f"u{i}"] for i in range(flow.dimensions)]), last["time"]


def draw(flow, u, t, path):
    """Write a picture of the vorticity to *path*; in 3-D, of its last component where z is 0. Collective."""
    vorticity = flow.to_grid(flow.curl(u))[-1]
    shown = (vorticity[:, :, 0] if flow.dimensions == 3 else vorticity).to_numpy()
    if flow.plan.source.mesh.rank == 0:
        from matplotlib import pyplot as plt  # only on the rank that draws

        plt.switch_backend("Agg")
        figure, panel = plt.subplots(figsize=(6, 5), layout="constrained")
        top = abs(shown).max()
        image = panel.imshow(shown.T, "RdBu_r", origin="lower", extent=(0, 2, 0, 2), vmin=-top, vmax=top)
        panel.set(title=f"vorticity at time {t:g}", xlabel="x / pi", ylabel="y / pi")
        figure.colorbar(image)
        figure.savefig(path, dpi=120)


def options():
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dimensions", type=int, choices=(2, 3), default=2, help="of space (2)")
    parser.add_argument("--n", type=int, help="waves along each axis (64 in 2-D, 24 in 3-D)")
    parser.add_argument("--nu", type=float, default=0.01, help="viscosity (0.01)")
    parser.add_argument("--steps", type=int, default=20, help="steps in time (20)")
    parser.add_argument("--dt", type=float, default=0.02, help="length of a step (0.02)")
    parser.add_argument("--pencils", action="store_true", help="cut the grid along two axes instead of one")
    parser.add_argument("--mask", action="store_true", help="dealias by the 2/3 rule instead of the 3/2 rule")
    parser.add_argument(
        "--series", type=Path, help="write each step to this .nc, .h5 or .zarr file, and go on from it"
    )
    parser.add_argument("--picture", type=Path, help="write a picture of the vorticity to this file")
    given = parser.parse_args()
    given.n = given.n or {2: 64, 3: 24}[given.dimensions]
    if given.n < 3 or given.steps < 1:
        parser.error("3 waves and 1 step are the fewest")
    return given


def main(given):
    """Solve the equations. Return whether all checks are right, the same on every rank."""
    layout = layout_of(given.dimensions, pencils=given.pencils)
    mesh = layout.mesh
    flow, checks = Flow(given.n, layout, given.nu, mask=given.mask), Checks(mesh)
    if mesh.rank == 0:
        print(flow.plan)
    u, t, seconds, early = flow.to_waves(flow.velocity(0.0)), 0.0, [], (0.0, 0.0)
    snapshots = snapshots_in(given.series, flow) if given.series else None
    if snapshots:
        u, t = last_of(snapshots, flow)
    done = round(t / given.dt)
    for number in range(done + 1, given.steps + 1):
        mc.barrier(mesh)
        begin = perf_counter()
        u = flow.step(u, given.dt)
        seconds.append(perf_counter() - begin)
        t = number * given.dt
        if snapshots is not None:
            snapshots.append(**{f"u{i}": each for i, each in enumerate(flow.to_grid(u))}, time=t)
        if given.dimensions == 3:
            expected, last = series(given.nu, t)
            if last < 1e-4:  # early enough for the series
                early = t, abs(flow.enstrophy(u) - expected) / expected
    slowest = mc.all_reduce(np.array(seconds), None, op="max")
    if mesh.rank == 0 and seconds:
        print(f"{len(seconds)} steps on {mesh.size} ranks: {1000 * np.median(slowest):.1f} ms for a step (median)")
    if early[0]:
        checks(f"enstrophy at time {early[0]:g}, from the series of Taylor and Green", early[1], 1e-5)
    energy, enstrophy = check(flow, u, t, checks)
    if mesh.rank == 0:
        print(f"at time {t:g}: energy {energy:.12f}, enstrophy {enstrophy:.12f}")
    if given.picture:
        draw(flow, u, t, given.picture)
    return checks.right


if __name__ == "__main__":
    sys.exit(not main(options()))
