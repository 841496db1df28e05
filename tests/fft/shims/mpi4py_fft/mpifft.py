"""PFFT on meshcomm.fft: one plan if all groups of axes have the same kind of transform, else a call for each group.

A transform with padding is followed by a crop of the spectrum; on the way back zeros are added before it. Layouts are
those of mpi4py-fft, so that blocks have the shapes that its tests ask for.
"""

from functools import lru_cache
from math import floor

import numpy as np

import meshcomm as mc
from mpi4py_fft.pencil import Subcomm, pencil_of


@lru_cache
def _mesh(sizes):
    return mc.create_mesh([(f"d{axis}", n) for axis, n in enumerate(sizes) if n > 1] or [("d", 1)])


class Group:
    """Axes that are transformed together: the names of the transforms, there and back, and their arguments."""

    def __init__(self, axes, real, transforms):
        self.axes, self.options = tuple(axes), {}
        self.there, self.back = ("rfftn", "irfftn") if real else ("fftn", "ifftn")
        if self.axes in transforms:
            there, back = transforms[self.axes]
            self.there, self.back = there.func.__name__, back.func.__name__
            self.options = dict(there.keywords)


class Transform:
    """One way of a PFFT."""

    def __init__(self, run, source, target):
        self._run = run
        (self._input, self.input_pencil), (self._output, self.output_pencil) = source, target
        self.input_array, self.output_array = self._input.local, self._output.local

    def __call__(self, input_array=None, output_array=None, **options):
        """Transform *input_array*, or what is in that of this object."""
        if input_array is not None:
            self.input_array[...] = input_array
        self.output_array[...] = self._run(self._input, **options).local
        if output_array is None:
            return self.output_array
        output_array[...] = self.output_array
        return output_array


class PFFT:
    """Parallel transforms, with mpi4py-fft's arguments."""

    def __init__(
        self,
        comm,
        shape,
        axes=None,
        dtype=float,
        *,
        grid=None,
        padding=False,
        collapse=False,
        backend=None,
        transforms=None,
    ):
        ndim, axes = len(shape), list(range(len(shape))) if axes is None else list(axes)
        groups = [(axis % ndim,) if isinstance(axis, int) else tuple(a % ndim for a in axis) for axis in axes]
        sizes = self._sizes(comm, groups[-1], ndim, grid)
        if collapse:
            groups = self._collapsed(groups, sizes)
        self.axes = tuple(groups)
        self.xfftn, self.transfer = groups, groups[1:]
        flat = [axis for group in groups for axis in group]
        small = [shape[axis] for axis in flat]
        padded = [floor(n * padding[axis]) if padding else n for axis, n in zip(flat, small, strict=True)]
        physical = list(shape)
        for axis, n in zip(flat, padded, strict=True):
            physical[axis] = n
        self._groups, self._grids = self._kinds(groups, np.dtype(dtype), transforms or {}), (small, padded)
        self._flat, self._physical = flat, tuple(physical)
        self._layouts(sizes, np.dtype(dtype), tuple(shape))

    @staticmethod
    def _sizes(comm, last, ndim, grid):
        if isinstance(comm, Subcomm):
            return comm
        if grid is not None:
            return Subcomm(comm, [*grid, *[1] * (ndim - len(grid))])
        return Subcomm(comm, [int(axis in last) for axis in range(ndim)])

    @staticmethod
    def _collapsed(groups, sizes):
        found = [()]
        for group in reversed(groups):
            if all(sizes[axis] == 1 for axis in group):
                found[0] = (*group, *found[0])
            else:
                found.insert(0, group)
        return found

    @staticmethod
    def _kinds(groups, dtype, transforms):
        found, real = [], dtype.kind == "f"
        for axes in reversed(groups):
            found.append(Group(axes, real, transforms))
            real = real and found[-1].there != "rfftn"
        return found

    def _layouts(self, sizes, dtype, shape):
        mesh = _mesh(tuple(sizes))
        specs = [f"d{axis}" if n > 1 else mc.UNSHARDED for axis, n in enumerate(sizes)]
        source = mc.Layout(specs, mesh)
        aligned = self._groups[0].axes[-1]
        for group in self._groups[1:]:  # as mpi4py-fft does it: each exchange swaps two axes
            axis = group.axes[-1]
            specs[aligned], specs[axis] = specs[axis], specs[aligned]
            aligned = axis
        self._source, self._target = source, mc.Layout(specs, mesh)
        halved = next((group for group in self._groups if group.there == "rfftn"), None)
        spectrum, complex_ = list(shape), dtype
        if halved is not None:
            spectrum[halved.axes[-1]] = shape[halved.axes[-1]] // 2 + 1
            complex_ = np.result_type(dtype, np.complex64)
        self._spectrum = tuple(spectrum)
        u = mc.empty(self._physical, dtype, source), pencil_of(self._physical, source)
        v = mc.empty(self._spectrum, complex_, self._target), pencil_of(self._spectrum, self._target)
        self.pencil = u[1], v[1]
        self._plans = {}
        self.forward, self.backward = Transform(self._forward, u, v), Transform(self._backward, v, u)

    def _plan(self, t, norm):
        """Return the plan for all axes; from the usual layout of the spectrum if it is cropped afterwards."""
        if norm not in self._plans:
            kind = self._groups[0].there
            target = self._target if self._grids[0] == self._grids[1] else None
            self._plans[norm] = mc.fft.plan(
                self._physical, t, self._source, target, kind, axes=self._flat, norm=norm, **self._groups[0].options
            )
        return self._plans[norm]

    def _alike(self):
        """Whether one plan can do all groups."""
        first, others = self._groups[0], self._groups[1:]
        rest = "fftn" if first.there == "rfftn" else first.there
        return all((group.there, group.options) == (rest, first.options) for group in others)

    def _forward(self, t, normalize=True):
        norm = "forward" if normalize else "backward"
        if self._alike():
            found = self._plan(t.dtype, norm).forward(t)
        else:
            found = t
            for group in self._groups:
                found = getattr(mc.fft, group.there)(found, axes=group.axes, norm=norm, **group.options)
        small, padded = self._grids
        if small != padded:
            kind = self._groups[0].there
            found = mc.fft.crop_spectrum(found, small, self._flat, kind=kind, was=padded, norm="forward")
        return mc.relayout(found, self._target)

    def _backward(self, t, normalize=False):
        norm = "backward" if normalize else "forward"
        small, padded = self._grids
        if small != padded:
            kind = self._groups[0].there
            t = mc.fft.pad_spectrum(t, padded, self._flat, kind=kind, was=small, norm="forward")
        if self._alike():
            plan = self._plan(self.dtype(False), norm)
            return plan.backward(mc.relayout(t, plan.target))
        found = t
        for group in reversed(self._groups):
            s = [self._physical[axis] for axis in group.axes]
            found = getattr(mc.fft, group.back)(found, s=s, axes=group.axes, norm=norm, **group.options)
        return mc.relayout(found, self._source)

    def dtype(self, forward_output=False):
        """Return the dtype of the array or of its spectrum."""
        return (self.forward.output_array if forward_output else self.forward.input_array).dtype

    def global_shape(self, forward_output=False):
        """Return the global shape of the array or of its spectrum."""
        return self._spectrum if forward_output else self._physical

    @property
    def dimensions(self):
        """How many axes the array has."""
        return len(self._physical)

    def destroy(self):
        """Do nothing: meshes are kept."""
