"""The steps of a distributed transform: transforms of blocks, relayouts, and transforms of an axis that is sharded."""

from dataclasses import dataclass
from math import log2, prod
from typing import TypeAlias

import numpy as np

from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.fft.factors import convolved_length
from meshcomm.fft.kinds import Transform, fourier_length

FFT_FLOP = 2e-10
"""Seconds. The time of one of the 5 n log2(n) operations of a complex transform of n elements, by SciPy on a core."""


@dataclass(frozen=True)
class TransformStep:
    """A step that transforms an array of *shape* and *dtype*."""

    transform: Transform
    shape: Shape
    dtype: DType

    @property
    def shape_after(self) -> Shape:
        """The shape of the result."""
        return self.transform.shape_after(self.shape)

    @property
    def dtype_after(self) -> DType:
        """The dtype of the result."""
        return self.transform.dtype_after(self.dtype)


@dataclass(frozen=True)
class LocalStep(TransformStep):
    """Transform the block of each device over unsharded axes."""

    layout: Layout
    """The layout of the result."""

    @property
    def flops(self) -> float:
        """The operations of the device with the largest block, by the usual count of 5 n log2(n) for n elements."""
        return flops_of(self.transform, self.shape, self.layout)

    @property
    def block_bytes(self) -> int:
        """The bytes of the largest block of a device: of the input or of the result."""
        input_elements = self.layout.largest_block(self.shape) if is_allowed(self.layout, self.shape) else 0
        result_bytes = self.layout.largest_block(self.shape_after) * self.dtype_after.itemsize
        return max(input_elements * self.dtype.itemsize, result_bytes)

    def received(self, machine: Machine) -> int:
        """Return 0: a device receives nothing."""
        return 0

    def seconds(self, machine: Machine) -> float:
        """Return the time that the step is predicted to take."""
        return self.flops * FFT_FLOP

    estimate = seconds

    def __str__(self) -> str:
        return f"{self.transform} on each device  {_count_text(self.flops)}flop"


@dataclass(frozen=True)
class RelayoutStep:
    """Relayout the array, so that other axes are unsharded."""

    shape: Shape
    dtype: DType
    source: Layout
    layout: Layout

    @property
    def shape_after(self) -> Shape:
        """The shape of the result: the same."""
        return self.shape

    @property
    def dtype_after(self) -> DType:
        """The dtype of the result: the same."""
        return self.dtype

    flops = 0.0

    @property
    def block_bytes(self) -> int:
        """The bytes of the largest block of a device."""
        return max(layout.largest_block(self.shape) for layout in (self.source, self.layout)) * self.dtype.itemsize

    def plan(self, machine: Machine) -> Plan:
        """Return the plan of the relayout."""
        return plan_relayout(self.shape, self.dtype, self.source, self.layout, None, machine)

    def estimate(self, machine: Machine) -> float:
        """Return an estimate of the time of the step, from three devices: a search calls it very often."""
        size = self.layout.mesh.size
        largest = self.layout.largest_block(self.shape)
        if self.source.mesh != self.layout.mesh:
            return exchange_seconds(machine, largest * self.dtype.itemsize, size - 1)
        devices = sorted({0, size // 2, size - 1})
        missing = largest - min(_common_elements(self.source, self.layout, self.shape, device) for device in devices)
        if missing <= 0:
            return 0.0
        old_positions, new_positions = (
            {name: (axis, names.index(name)) for axis, names in enumerate(layout.axes) for name in names}
            for layout in (self.source, self.layout)
        )
        moved_names = [
            name for name in (*old_positions, *new_positions) if old_positions.get(name) != new_positions.get(name)
        ]
        # Only the cut changes.
        peers = prod(self.layout.mesh.dim_size(name) for name in set(moved_names)) - 1 if moved_names else size - 1
        return exchange_seconds(machine, missing * self.dtype.itemsize, peers)

    def received(self, machine: Machine) -> int:
        """Return the most bytes that a device receives."""
        return self.plan(machine).bytes_moved

    def seconds(self, machine: Machine) -> float:
        """Return the time that the step is predicted to take."""
        return self.plan(machine).seconds

    def __str__(self) -> str:
        return f"relayout {self.source.specs_text} -> {self.layout.specs_text}"


@dataclass(frozen=True)
class ShardedStep(TransformStep):
    """Transform one axis that stays sharded.

    Parameters
    ----------
    transform: transform over this one axis
    shape, dtype, source: shape, dtype and layout of the input
    layout: layout of the result
    rows: rows of the matrix of the four-step algorithm; 0 for a convolution (Bluestein)
    """

    source: Layout
    layout: Layout
    rows: int

    @property
    def length(self) -> int:
        """The length of the Fourier transform."""
        return fourier_length(self.transform)

    @property
    def flops(self) -> float:
        """The operations of the device with the largest block."""
        growth = 4 if self.transform.change == "same_dtype" else 1  # complex, and twice as long
        return flops_of(self.transform, self.shape, self.source) * (1.2 if self.rows else 8) * growth

    @property
    def block_bytes(self) -> int:
        """The bytes of the largest block of a device."""
        growth = 4 if self.transform.change == "same_dtype" else 1
        return self.source.largest_block(self.shape) * self.dtype_after.itemsize * (1 if self.rows else 4) * growth

    def received(self, machine: Machine) -> int:
        """Return an estimate of the bytes that a device receives; exact for complex four steps of even blocks."""
        (axis,), work = self.transform.axes, "c8" if self.rows else "c16"
        length = self.length if self.rows else convolved_length(self.length)
        elements = prod((*self.shape[:axis], length, *self.shape[axis + 1 :]))
        nbytes = elements * np.result_type(self.dtype, work).itemsize / self._shards
        return int(self._exchanges * nbytes * (1 - 1 / self._shards))

    @property
    def _exchanges(self) -> int:
        """The number of exchanges of all elements."""
        if not self.rows:
            return 8
        (axis,) = self.transform.axes
        to_columns, to_rows, to_line = 1, 1, 1 if self.layout.cyclic(axis) is None else 0
        return to_columns + to_rows + to_line + (2 if self.transform.change == "doubles" else 0)  # a half is mirrored

    @property
    def _shards(self) -> int:
        return prod(self.source.num_shards(axis) for axis in range(len(self.shape)))

    def seconds(self, machine: Machine) -> float:
        """Return the time that the step is predicted to take."""
        exchange = exchange_seconds(machine, self.block_bytes * (1 - 1 / self._shards), self._shards - 1)
        return self.flops * FFT_FLOP + exchange * (3 if self.rows else 8)

    estimate = seconds

    def __str__(self) -> str:
        method = f"four steps, {self.rows} x {self.length // self.rows}" if self.rows else "a convolution (Bluestein)"
        target = self.layout.specs_text
        return f"{self.transform}, sharded ({method}) -> {target}  {_count_text(self.flops)}flop"


FFTStep: TypeAlias = LocalStep | RelayoutStep | ShardedStep


def flops_of(transform: Transform, shape: Shape, layout: Layout) -> float:
    """Return the operations of the device with the largest block; half as many if input or output is real."""
    lengths = [max(n, m) for n, m in zip(shape, transform.shape_after(shape), strict=True)]
    size = layout._recut(tuple(tuple(spec) for spec in layout.axes)).largest_block(lengths)
    logs = sum(log2(max(2, n)) for n in transform.lengths)
    return 5.0 * size * logs * (1.0 if transform.change == "complex" else 0.5)


def exchange_seconds(machine: Machine, nbytes: float, peers: int) -> float:
    """Return an estimate of the time to receive *nbytes* from *peers* peers, packed and unpacked."""
    beta, latency, alpha = (
        (machine.beta_within, machine.wait_within, machine.alpha_within)
        if machine.one_node
        else (machine.beta_between, machine.wait_between, machine.alpha_between)
    )
    return latency + alpha * peers + nbytes * (beta + 2 * machine.gamma)


def _common_elements(source: Layout, target: Layout, shape: Shape, device: int) -> float:
    """Return an estimate of the number of elements of its new block that a device already holds."""
    common, old_numbers, new_numbers = 1.0, source.block_numbers(device), target.block_numbers(device)
    for axis, n in enumerate(shape):
        old_cut, new_cut = source.cut(axis, n), target.cut(axis, n)
        if old_cut == new_cut and old_numbers[axis] == new_numbers[axis]:
            common *= new_cut.longest
        else:
            common *= old_cut.common(old_numbers[axis], new_cut, new_numbers[axis])
    return common


def is_allowed(layout: Layout, shape: Shape) -> bool:
    """Return whether an array of *shape* can have *layout*: explicit boundaries fit one length only."""
    try:
        layout.check_fits(shape)
    except ValueError:
        return False
    return True


def _count_text(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"
