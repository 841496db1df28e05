"""The axes of a layout, and the layouts that are made of one by its axes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from meshcomm.core._arguments import counted, integer, quote
from meshcomm.core._types import Names
from meshcomm.core.layouts.layout_text import LayoutType
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.errors import LayoutError


class LayoutAxes:
    """What a layout answers by its axes alone; `Layout` derives from it."""

    __slots__ = ()

    if TYPE_CHECKING:
        _mesh: Mesh
        _axes: tuple[Names, ...]
        _match: int | None
        _type: LayoutType

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
        listed = dims if isinstance(dims, list | tuple | set | frozenset | range) else [dims]
        dropped = {axis_number(axis, self.ndim) for axis in listed}
        kept = [axis for axis in range(self.ndim) if axis not in dropped]
        match = kept.index(self._match) if self._match in kept else None
        return self._make(self._mesh, tuple(self._axes[axis] for axis in kept), match, self._type)

    def _recut(self, axes: tuple[Names, ...]) -> Self:
        """Return the layout on the same mesh that has these *axes*, in canonical form; nothing is checked.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED], Mesh(range(2), {"x": 2}))._recut(((), ("x",))).sharding_specs
        ['unsharded', 'x']
        """
        return self._make(self._mesh, axes, None, LayoutType.STATIC)

    def undealt(self, axes: Sequence[int]) -> tuple[Names, ...]:
        """Return `axes` with consecutive blocks over the same mesh dimensions where those given are `Cyclic`.

        >>> from meshcomm import Cyclic, Layout
        >>> Layout([Cyclic("x", 2), Cyclic("y", 3)], Mesh(range(4), {"x": 2, "y": 2})).undealt([1])
        (Cyclic('x', 2), ('y',))
        """
        return tuple(tuple(n) if a in axes and isinstance(n, Cyclic) else n for a, n in enumerate(self._axes))


def axis_number(axis: object, ndim: int) -> int:
    """Return *axis* counted from the front."""
    number = integer(axis, "axis", LayoutError)
    if not -ndim <= number < ndim:
        raise LayoutError(f"axis {quote(axis)} of a layout for {counted(ndim, 'axis')}; it is -ndim <= axis < ndim")
    return number % ndim
