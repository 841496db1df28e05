"""The axes of a layout, and layouts derived from one by changes of its axes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import Names
from meshcomm.core.layouts.layout_text import MATCH, LayoutType
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.errors import LayoutError


class LayoutAxes:
    """The methods of a layout that need its axes only; `Layout` derives from it."""

    __slots__ = ()

    if TYPE_CHECKING:
        _mesh: Mesh
        _axes: tuple[Names, ...]
        _match: int | None
        _type: LayoutType
        match_axis: int | None

        def __new__(cls, sharding_specs: Sequence[str | Sequence[str]], mesh: Mesh) -> Self: ...
        @property
        def ndim(self) -> int: ...
        @classmethod
        def _make(cls, mesh: Mesh, axes: tuple[Names, ...], match: int | None, layout_type: LayoutType) -> Self: ...

    def delete(self, dims: int | Iterable[int]) -> Self:
        """Return the layout without the axes *dims*, one or several, which may count from the end.

        >>> from meshcomm import UNSHARDED, Layout
        >>> layout = Layout(["x", UNSHARDED], Mesh.from_string("|x=2|*CPU"))
        >>> layout.delete(0).sharding_specs, layout.delete([0, -1]).sharding_specs
        (['unsharded'], [])
        """
        dropped_axes = self._axis_numbers(dims)
        remaining_axes = [axis for axis in range(self.ndim) if axis not in dropped_axes]
        match = remaining_axes.index(self._match) if self._match in remaining_axes else None
        return self._make(self._mesh, tuple(self._axes[axis] for axis in remaining_axes), match, self._type)

    def take(self, axes: Iterable[int]) -> Self:
        """Return the layout of arrays that have these axes only, in this order.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED, "y"], Mesh(range(4), {"x": 2, "y": 2})).take([2, 0]).sharding_specs
        ['y', 'x']
        """
        return self._recut(tuple([self._axes[axis_number(axis, self.ndim)] for axis in axes]))

    def insert(self, axis: int, names: Names = ()) -> Self:
        """Return the layout with one more axis before *axis*, sharded over *names*.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2})).insert(0).sharding_specs
        ['unsharded', 'x', 'unsharded']
        """
        return type(self)((*self._axes[:axis], names, *self._axes[axis:]), self._mesh)

    def replace(self, axes: int | Iterable[int], names: Names) -> Self:
        """Return the layout with one axis sharded over *names*, or several of them unsharded.

        >>> from meshcomm import UNSHARDED, Layout
        >>> layout = Layout(["x", UNSHARDED], Mesh(range(4), {"x": 2, "y": 2}))
        >>> layout.replace(1, ("y",)).sharding_specs, layout.replace([0, 1], ()).sharding_specs
        (['x', 'y'], ['unsharded', 'unsharded'])
        """
        numbers = self._axis_numbers(axes)
        new_axes = tuple([names if axis in numbers else old_names for axis, old_names in enumerate(self._axes)])
        return type(self)(new_axes, self._mesh) if names else self._recut(new_axes)

    def only(self, axes: int | Iterable[int]) -> Self:
        """Return the layout in which these axes stay sharded, and no others.

        >>> from meshcomm import Layout
        >>> Layout(["x", "y"], Mesh(range(4), {"x": 2, "y": 2})).only(1).sharding_specs
        ['unsharded', 'y']
        """
        numbers = self._axis_numbers(axes)
        return self._recut(tuple([names if axis in numbers else () for axis, names in enumerate(self._axes)]))

    def default_cut(self, axes: int | Iterable[int]) -> Self:
        """Return the layout in which these axes are cut by default, over the same mesh dimensions.

        >>> from meshcomm import Cyclic, Layout
        >>> Layout([Cyclic("x", 2), Cyclic("y", 3)], Mesh(range(4), {"x": 2, "y": 2})).default_cut(0).sharding_specs
        ['x', Cyclic('y', 3)]
        """
        numbers = self._axis_numbers(axes)
        return self._recut(tuple([tuple(n) if axis in numbers else n for axis, n in enumerate(self._axes)]))

    def dims_along(self, axes: int | Iterable[int]) -> Names:
        """Return the mesh dimensions of several devices that shard these axes, in the order of the mesh.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout([("y", "x"), UNSHARDED], Mesh(range(4), {"x": 2, "y": 2, "z": 1})).dims_along([0, 1])
        ('x', 'y')
        """
        names = {name for axis in self._axis_numbers(axes) for name in self._axes[axis]}
        return tuple([name for name, size in self._mesh.dims if name in names and size > 1])

    @property
    def sharding_dims(self) -> Names:
        """The mesh dimensions of several devices that shard any axis, in the order of the mesh.

        >>> from meshcomm import Layout
        >>> Layout(["y", "x"], Mesh(range(4), {"x": 2, "y": 2})).sharding_dims
        ('x', 'y')
        """
        return self.dims_along(range(self.ndim))

    def _axis_numbers(self, axes: int | Iterable[int]) -> set[int]:
        """Return *axes*, one or several, counted from the front."""
        axis_list = axes if isinstance(axes, Iterable) else [axes]
        return {axis_number(axis, self.ndim) for axis in axis_list}

    def _recut(self, axes: tuple[Names, ...]) -> Self:
        """Return the layout on the same mesh that has these *axes*, in canonical form; nothing is checked.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2}))._recut(((), ("x",))).sharding_specs
        ['unsharded', 'x']
        """
        return self._make(self._mesh, axes, None, LayoutType.STATIC)

    def as_consecutive(self, axes: Sequence[int]) -> tuple[Names, ...]:
        """Return the `axes` of the layout, those of *axes* that are `Cyclic` with consecutive blocks instead.

        >>> from meshcomm import Cyclic, Layout
        >>> Layout([Cyclic("x", 2), Cyclic("y", 3)], Mesh(range(4), {"x": 2, "y": 2})).as_consecutive([1])
        (Cyclic('x', 2), ('y',))
        """
        return tuple(tuple(n) if a in axes and isinstance(n, Cyclic) else n for a, n in enumerate(self._axes))


def axis_number(axis: object, ndim: int) -> int:
    """Return *axis* counted from the front."""
    number = as_integer(axis, "axis", LayoutError)
    if not -ndim <= number < ndim:
        raise LayoutError(f"axis {quote(axis)} of a layout for {counted(ndim, 'axis')}; it is -ndim <= axis < ndim")
    return number % ndim


def listed(subject: str, values: Iterable[int]) -> tuple[int, ...]:
    """Return *values* as a tuple; ``LayoutError`` about *subject* if they are no sequence."""
    try:
        return tuple(values)
    except TypeError:
        raise LayoutError(f"{subject} {quote(values)} is a {type(values).__name__}; it must be a sequence") from None


def refuse_match(layout: LayoutAxes) -> None:
    """Raise LayoutError if an axis is MATCH: without a source, the layout does not say where elements are.

    >>> from meshcomm import Layout
    >>> refuse_match(Layout(["x"], Mesh(range(2), {"x": 2})))
    >>> refuse_match(Layout(["match"], Mesh(range(2), {"x": 2})))
    Traceback (most recent call last):
        ...
    meshcomm.LayoutError: axis 0 is 'match'; matched(source) replaces it by what a source layout has there
    """
    axis = layout.match_axis
    if axis is not None:
        raise LayoutError(f"axis {axis} is {MATCH!r}; matched(source) replaces it by what a source layout has there")
