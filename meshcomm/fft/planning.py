"""Plans of transforms: to run transforms many times, or to see their steps first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.session import session
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_dtype, as_shape, counted, quote
from meshcomm.core._tracing import Value, is_traced, traceable, unpacked_traced, untraced
from meshcomm.core._types import DType, Shape, ShapeLike
from meshcomm.core._units import bytes_text, outline, seconds_text
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.fft.calls import Ints, transform_of
from meshcomm.fft.execute import FFTOptions, check_options, run_steps
from meshcomm.fft.kinds import Transform, full_name
from meshcomm.fft.search import cheapest
from meshcomm.fft.spectra import along_axes, check_has_frequencies, distances_of
from meshcomm.fft.steps import FFTStep, LocalStep, ShardedStep

ResultLayout: TypeAlias = Layout | Literal["same"] | None
"""The argument ``layout=``: a layout; "same" for that of the input; None for the one after the last transform."""


Tensors = TypeVar("Tensors", DTensor, list[DTensor])
"""A tensor, or several that move together."""


@dataclass(frozen=True, eq=False, repr=False)
class FFTPlan:
    """The steps of a transform of arrays of one shape, dtype and layout, and of its inverse: see `plan`.

    ``print(plan)`` shows the steps.

    Parameters
    ----------
    shape, dtype: shape and dtype of the arrays
    transform: the transform
    source, target: the layouts of the arrays and of their spectra
    steps, steps_back: the steps of `forward` and `backward`
    machine: the cost model that chose the steps
    """

    shape: Shape
    dtype: DType
    transform: Transform
    source: Layout
    target: Layout
    steps: tuple[FFTStep, ...]
    steps_back: tuple[FFTStep, ...]
    machine: Machine
    options: FFTOptions

    @property
    def spectrum_shape(self) -> Shape:
        """The global shape of the spectrum."""
        return self.transform.shape_after(self.shape)

    @property
    def spectrum_dtype(self) -> DType:
        """The dtype of the spectrum."""
        return self.transform.dtype_after(self.dtype)

    @property
    def bytes_moved(self) -> int:
        """The most bytes that a device receives in `forward`; an estimate if an axis stays sharded."""
        return sum(step.received(self.machine) for step in self.steps)

    @property
    def flops(self) -> float:
        """The operations of the device with the largest block in `forward`: 5 n log2(n) for n complex elements."""
        return sum(step.flops for step in self.steps)

    @property
    def seconds(self) -> float:
        """The time that `forward` is predicted to take."""
        return sum(step.seconds(self.machine) for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """The most bytes of blocks that a device holds at once in `forward`, without scratch to pack messages."""
        return 2 * max((step.block_bytes for step in self.steps), default=0)

    @refusable
    def forward(self, tensor: Tensors, out: Tensors | None = None) -> Tensors:
        """Return the transform of a tensor, or of each of a list: each relayout moves all of them in one exchange.

        Collective over the mesh.

        Parameters
        ----------
        tensor: tensor in the source layout of the plan, or a list of such tensors
        out: tensor in the target layout to overwrite, or a list of such tensors

        ``LayoutError``, ``ShapeError`` or ``DTypeError`` if a tensor does not fit the plan.
        """
        return self._run("forward", tensor, out)

    @refusable
    def backward(self, tensor: Tensors, out: Tensors | None = None) -> Tensors:
        """Return the inverse transform, in the source layout, of a result of `forward`. Collective over the mesh.

        Arguments and errors are those of `forward`. If *s* cropped or padded the arrays, the results have those
        lengths.
        """
        return self._run("backward", tensor, out)

    def frequencies(self, d: float | Sequence[float] = 1.0) -> tuple[DTensor, ...]:
        """Return the frequencies along each transformed axis, sharded as the spectra: see `meshcomm.fft.frequencies`.

        Parameters
        ----------
        d: the distance of two elements of the arrays, along all axes or for each of them

        ``ShapeError`` for cosine and sine transforms, and for those with real results, which have no such frequencies.
        """
        axes, lengths = self.transform.axes, self.transform.lengths
        check_has_frequencies("plan.frequencies", self.transform.kind)
        grids = list(zip(axes, lengths, distances_of("plan.frequencies", d, len(axes)), strict=True))
        halved = self.transform.resized_axis if self.transform.change == "halves" else None
        return along_axes(self.target, self.spectrum_shape, self.spectrum_dtype, grids, halved)

    def _run(self, direction: str, tensor: object, out: object) -> Value:
        tensors = _as_list(f"plan.{direction}", unpacked_traced(tensor))
        outs = None if out is None else _as_list(f"plan.{direction}, out", out)
        if outs is not None and len({*map(id, outs)}) < len(outs):
            raise LayoutError(f"plan.{direction}: out names a tensor twice")
        input_spec = self.source, self.shape, self.dtype
        output_spec = self.target, self.spectrum_shape, self.spectrum_dtype
        if direction == "backward":
            inverse, input_spec = self.transform.inverse, output_spec
            output_spec = self.source, inverse.shape_after(input_spec[1]), inverse.dtype_after(input_spec[2])
        for t in tensors:
            _check_operand(f"plan.{direction}", untraced(t), *input_spec)
        if outs is not None and len(outs) != len(tensors):
            raise ShapeError(
                f"plan.{direction}: {counted(len(outs), 'tensor')} in out for {counted(len(tensors), 'tensor')}"
            )
        for target in outs or ():
            _check_operand(f"plan.{direction}, out", target, *output_spec)
            check_writable(f"plan.{direction}, out", target)
        if any(is_traced(t) for t in tensors):
            if outs is not None:
                raise NotImplementedError(f"plan.{direction}: autograd cannot follow what is written to out")
            results = [execute_plan(t, self, direction) for t in tensors]
        else:
            results = _run_together(self, direction, [t.refresh() for t in tensors], outs)
            for target in outs or ():
                target.written()
        return results if isinstance(untraced(tensor), list | tuple) else results[0]

    def __str__(self) -> str:
        transform, source = self.transform, self.source
        heading = f"{transform.kind} over axes {transform.axes} of {self.shape} {self.dtype} on mesh"
        totals = (
            f"forward: each device does at most {self.flops:.3g} operations, "
            f"receives {bytes_text(self.bytes_moved)} and holds {bytes_text(self.peak_bytes)} of blocks; "
            f"predicted {seconds_text(self.seconds)}"
        )
        directions = (("forward", self.steps), ("backward", self.steps_back))
        return outline(
            f"{heading} {source.mesh.dims_text}: {source.specs_text} -> {self.target.specs_text}",
            rows=[*(outline(direction, map(self._step_text, steps)) for direction, steps in directions), totals],
        )

    def _step_text(self, step: FFTStep) -> str:
        about = "about " if isinstance(step, ShardedStep) else ""
        moved = "" if isinstance(step, LocalStep) else f"  {about}{bytes_text(step.received(self.machine))} received"
        cost = f"{seconds_text(step.seconds(self.machine))}, blocks of {bytes_text(step.block_bytes)}"
        return f"{step}{moved}  [{cost}]"

    __repr__ = __str__


@traceable()
def execute_plan(x: DTensor, plan: FFTPlan, direction: str) -> DTensor:
    """Return ``plan.forward(x)`` or ``plan.backward(x)``: *direction* says which. Collective over the mesh."""
    return _run_together(plan, direction, [x], None)[0]


def transform_of_plan(plan: FFTPlan, direction: str) -> Transform:
    """Return the transform that ``plan.forward`` or ``plan.backward`` does."""
    return plan.transform if direction == "forward" else plan.transform.inverse


def _run_together(
    plan: FFTPlan, direction: str, tensors: list[DTensor], outs: Sequence[DTensor] | None
) -> list[DTensor]:
    """Return the transforms of tensors that fit the plan. Collective over the mesh, if there are any."""
    if not tensors:
        return []
    with session(transform_of_plan(plan, direction).operation, plan.source.mesh, plan.target.mesh):
        steps = plan.steps if direction == "forward" else plan.steps_back
        return run_steps(steps, tensors, plan.options, outs)


def plan(
    shape: ShapeLike,
    dtype: DTypeLike,
    source: Layout,
    target: ResultLayout = None,
    kind: str = "rfftn",
    *,
    axes: Ints = None,
    s: Ints = None,
    norm: str | None = None,
    type: int = 2,
    backend: str | None = None,
    workers: int | None = None,
    machine: Machine | None = None,
) -> FFTPlan:
    """Return a plan of a transform and of its inverse. Pure: nothing is sent, and no rank has to run.

    Parameters
    ----------
    shape, dtype: shape and dtype of the arrays
    source: layout of the arrays
    target: layout of their spectra; None for the layout after the last transform, "same" for that of the arrays
    kind: a name of SciPy, "rfftn", "fftn", "dctn", ...
    axes, s, norm: arguments of that function
    type: type of a cosine or sine transform
    backend, workers: see `fftn`
    machine: cost model, by default one with typical constants; `fftn` uses ``meshcomm.machine_of(mesh)``

    ``ShapeError``, ``LayoutError`` or ``DTypeError`` for arguments that do not fit.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(4), {"x": 2, "y": 2})
    >>> plan = mc.fft.plan((8, 8, 8), "f8", mc.Layout(["x", "y", mc.UNSHARDED], mesh))
    >>> plan.target.sharding_specs, plan.spectrum_shape
    (['unsharded', 'unsharded', ('x', 'y')], (8, 8, 5))
    """
    lengths, array_dtype = as_shape(shape), as_dtype(dtype)
    check_source(source, lengths)
    if axes is None and s is None and kind != full_name(kind):
        axes = (-2, -1) if kind.endswith("2") else (-1,)
    transform = transform_of(kind, lengths, s, axes, norm=norm, variant=type)
    transform.check_input(array_dtype)
    options = FFTOptions(backend, workers)
    check_options(options, transform)  # the backend is imported now, not in the first transform
    if machine is not None and not isinstance(machine, Machine):
        raise MeshError(f"machine must be a Machine, not {quote(machine)}")
    machine = machine or Machine()
    spectrum_layout = target_layout(target, source, transform, lengths)
    steps = cheapest(transform, (lengths, array_dtype), source, spectrum_layout, machine)
    spectrum_source = spectrum_layout if spectrum_layout is not None else steps[-1].layout if steps else source
    spectrum = transform.shape_after(lengths), transform.dtype_after(array_dtype)
    inverse = transform.inverse
    array_layout = source.for_shape(inverse.shape_after(spectrum[0]))
    steps_back = cheapest(inverse, spectrum, spectrum_source, array_layout, machine)
    return FFTPlan(lengths, array_dtype, transform, source, spectrum_source, steps, steps_back, machine, options)


def check_source(source: object, shape: Shape) -> None:
    """Raise ``LayoutError`` unless *source* can be the layout of an array of *shape*."""
    if not isinstance(source, Layout):
        raise LayoutError(f"the layout of an array to transform is a Layout, not {quote(source)}")
    refuse_match(source)
    if source.ndim != len(shape):
        raise LayoutError(
            f"an array of shape {shape} has {counted(len(shape), 'axis')}, but its layout is for {source.ndim}"
        )
    source.check_fits(shape)


def target_layout(spectrum_layout: ResultLayout, source: Layout, transform: Transform, shape: Shape) -> Layout | None:
    """Return the layout for ``layout=spectrum_layout``; None if any layout will do."""
    if spectrum_layout is None:
        return None
    shape_after = transform.shape_after(shape)
    if isinstance(spectrum_layout, Layout):
        if spectrum_layout.ndim != len(shape_after):
            raise LayoutError(
                f"layout: the result of shape {shape_after} has {counted(len(shape_after), 'axis')}, "
                f"not {spectrum_layout.ndim}"
            )
        matched = spectrum_layout.matched(source)
        matched.check_fits(shape_after)
        return matched
    if spectrum_layout != "same":
        raise LayoutError(f'layout must be a Layout, "same" or None, not {quote(spectrum_layout)}')
    return source.for_shape(shape_after)


def _as_list(name: str, operand: object) -> list[DTensor]:
    if isinstance(untraced(operand), DTensor):
        return [cast("DTensor", operand)]  # or a value that autograd follows
    if not isinstance(operand, list | tuple):
        raise LayoutError(f"{name} takes a DTensor or a list of them, not {type(operand).__name__}")
    return list(operand)


def _check_operand(name: str, tensor: object, layout: Layout, shape: Shape, dtype: DType) -> None:
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} takes a DTensor, not {type(tensor).__name__}")
    if tensor.layout != layout:
        raise LayoutError(
            f"{name}: the tensor is in {tensor.layout.specs_text} on {tensor.mesh}, but the plan is "
            f"for {layout.specs_text} on {layout.mesh}"
        )
    if tensor.shape != shape:
        raise ShapeError(f"{name}: the tensor has shape {tensor.shape}, but the plan is for {shape}")
    if tensor.dtype != dtype:
        raise DTypeError(f"{name}: the tensor is {tensor.dtype}, but the plan is for {np.dtype(dtype)}")
