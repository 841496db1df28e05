"""Kinds of transforms: their effects on lengths and dtypes, and their stages.

A transform over several axes is done in stages, each over the axes that are unsharded at that time. Complex, cosine
and sine transforms may take their axes in any order. A transform of real input halves its *last* axis, and transforms
it first; one with real output transforms it last, and doubles it.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import DType, Shape
from meshcomm.errors import DTypeError, ShapeError

Change: TypeAlias = Literal["complex", "halves", "doubles", "same_dtype"]


class Kind(NamedTuple):
    """A kind of transform over several axes.

    Parameters
    ----------
    name: SciPy's name
    complex_kind: the kind for the axes that keep their length; the kind itself if no axis is halved or doubled
    inverse: the kind of the inverse
    change: "complex": to complex elements; "halves": from real elements to half a Hermitian spectrum; "doubles": from
        half a Hermitian spectrum to real elements; "same_dtype": to elements of the same dtype
    """

    name: str
    complex_kind: str
    inverse: str
    change: Change


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fftn", "fftn", "ifftn", "complex"),
        Kind("ifftn", "ifftn", "fftn", "complex"),
        Kind("rfftn", "fftn", "irfftn", "halves"),
        Kind("irfftn", "ifftn", "rfftn", "doubles"),
        Kind("hfftn", "fftn", "ihfftn", "doubles"),
        Kind("ihfftn", "ifftn", "hfftn", "halves"),
        Kind("dctn", "dctn", "idctn", "same_dtype"),
        Kind("idctn", "idctn", "dctn", "same_dtype"),
        Kind("dstn", "dstn", "idstn", "same_dtype"),
        Kind("idstn", "idstn", "dstn", "same_dtype"),
    )
}
"""Kinds by SciPy's names."""

NORMS = (None, "backward", "ortho", "forward")


@dataclass(frozen=True)
class Transform:
    """A transform over some axes of an array.

    Parameters
    ----------
    kind: a name in `KINDS`
    axes: axes in the order of the call; the last one may be halved or doubled
    lengths: length to which each axis is cropped or padded with zeros before the transform; for a doubled axis, its
        length afterwards
    norm: SciPy's argument
    variant: type of a cosine or sine transform, 1 to 4
    orthogonalize: SciPy's argument of a cosine or sine transform
    function_name: name of the function for messages; "" for the name of the kind
    """

    kind: str
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    norm: str | None = None
    variant: int = 2
    orthogonalize: bool | None = None
    function_name: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name of the transform in messages."""
        return self.function_name or self.kind

    @property
    def change(self) -> Change:
        """The effect of the kind on elements."""
        return KINDS[self.kind].change

    @property
    def resized_axis(self) -> int | None:
        """The axis that is halved or doubled; None for other kinds."""
        return self.axes[-1] if self.change in ("halves", "doubles") else None

    @property
    def matrix_type(self) -> int:
        """The type of the matrix of a cosine or sine transform: the inverse of type 2 has that of type 3."""
        return {2: 3, 3: 2}.get(self.variant, self.variant) if self.kind.startswith("i") else self.variant

    @property
    def is_orthogonal(self) -> bool:
        """Whether the matrix of a cosine or sine transform is orthogonal, up to its scale."""
        return self.norm == "ortho" if self.orthogonalize is None else self.orthogonalize

    def end_indices(self, n: int) -> list[int]:
        """Return the indices of an axis of *n* elements that a cosine or sine transform counts once, not twice."""
        if self.variant == 1:
            return [0, n - 1] if "c" in self.kind else []
        return [0] if "c" in self.kind else [n - 1]

    @cached_property
    def operation(self) -> str:
        """The text that ranks compare, also for messages."""
        return f"fft.{self}"

    def shape_after(self, shape: Shape) -> Shape:
        """Return the shape that an array of *shape* has after the transform.

        >>> Transform("rfftn", (0, 1), (4, 6)).shape_after((4, 6, 3))
        (4, 4, 3)
        """
        lengths = list(shape)
        for axis, n in zip(self.axes, self.lengths, strict=True):
            lengths[axis] = n // 2 + 1 if axis == self.resized_axis and self.change == "halves" else n
        return tuple(lengths)

    @property
    def inverse(self) -> "Transform":
        """The transform that takes the result back to an array of `lengths` along its axes."""
        return replace(self, kind=KINDS[self.kind].inverse, function_name="")

    def dtype_after(self, dtype: DType) -> DType:
        """Return the dtype that elements of *dtype* have after the transform.

        >>> Transform("fftn", (0,), (4,)).dtype_after(np.dtype("f4"))
        dtype('complex64')
        """
        work = working_dtype(dtype)
        if self.change == "same_dtype":
            return work
        if self.change == "doubles":
            return np.empty(0, work).real.dtype
        return np.result_type(work, np.complex64)

    def stage(self, axes: frozenset[int]) -> "Transform":
        """Return the stage over the transformed axes that are in *axes*."""
        kind = self.kind if self.resized_axis is None or self.resized_axis in axes else KINDS[self.kind].complex_kind
        pairs = [(a, n) for a, n in zip(self.axes, self.lengths, strict=True) if a in axes]
        axes_of_stage, lengths = tuple(a for a, _ in pairs), tuple(n for _, n in pairs)
        return Transform(kind, axes_of_stage, lengths, self.norm, self.variant, self.orthogonalize)

    def ready(self, todo: frozenset[int], unsharded: frozenset[int]) -> frozenset[int]:
        """Return the axes of *todo* that can be transformed now; *unsharded* are the unsharded axes.

        >>> sorted(Transform("rfftn", (0, 1), (4, 6)).ready(frozenset({0, 1}), frozenset({0})))
        []
        """
        ready_axes = todo & unsharded
        if self.resized_axis not in todo:
            return ready_axes
        if self.change == "halves":
            return ready_axes if self.resized_axis in ready_axes else frozenset()
        return ready_axes if ready_axes == todo else ready_axes - {self.resized_axis}

    def check_input(self, dtype: DType) -> None:
        """Raise ``DTypeError`` for input that a kind does not take."""
        if dtype.kind not in "biufc":
            raise DTypeError(f"{self.name} transforms numbers, not {dtype}")
        if self.change == "halves" and dtype.kind == "c":
            suffix = self.name.removeprefix(self.kind[:-1])  # "", "2" or "n"
            raise DTypeError(
                f"{self.name} transforms real numbers, not {dtype}: use {KINDS[self.kind].complex_kind[:-1]}{suffix}"
            )

    def __str__(self) -> str:
        variant = f" type {self.variant}" if self.change == "same_dtype" else ""
        options_text = f", norm={self.norm!r}" if self.norm not in (None, "backward") else ""
        if self.orthogonalize is not None:
            options_text += f", orthogonalize={self.orthogonalize}"
        return f"{self.name}{variant} over axes {self.axes} of {'x'.join(map(str, self.lengths))}{options_text}"


def working_dtype(dtype: DType) -> DType:
    """Return the dtype in which elements of *dtype* are transformed, as SciPy chooses it, in native byte order.

    >>> [str(working_dtype(np.dtype(name))) for name in ("f2", "i4", ">c8", "g")]
    ['float32', 'float64', 'complex64', 'float128']
    """
    if dtype == np.float16:
        return np.dtype(np.float32)
    return dtype.newbyteorder("=") if dtype.kind in "fc" else np.dtype(np.float64)


def fourier_length(transform: Transform) -> int:
    """Return the length of the Fourier transform that computes a transform of one sharded axis.

    >>> fourier_length(Transform("dctn", (0,), (8,))), fourier_length(Transform("dstn", (0,), (8,), variant=1))
    (16, 18)
    """
    (n,) = transform.lengths
    if transform.change != "same_dtype":
        return n
    if transform.variant != 1:
        return 2 * n
    return 2 * (n - 1) if "c" in transform.kind else 2 * (n + 1)


def full_name(name: object) -> str:
    """Return the name of a kind over several axes, from the name of SciPy's function over one, two or several axes.

    >>> full_name("rfft"), full_name("ifft2"), full_name("dctn")
    ('rfftn', 'ifftn', 'dctn')
    """
    text = name if isinstance(name, str) else ""
    for candidate in (text, f"{text}n", f"{text.removesuffix('2')}n"):
        if candidate in KINDS:
            return candidate
    raise ShapeError(f"kind must be one of {', '.join(KINDS)}, not {quote(name)}")
