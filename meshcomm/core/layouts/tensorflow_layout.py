"""TensorFlow's methods of layouts: other types of layouts, shapes, text and wire form; `Layout` derives from it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core.layouts import layout_text, wire
from meshcomm.core.layouts.axes import LayoutAxes, listed, refuse_match
from meshcomm.core.layouts.layout_text import LayoutType, Spec
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import CutSpec, cut_of
from meshcomm.errors import LayoutError, ShapeError


class TensorFlowLayout(LayoutAxes):
    """The methods of TensorFlow's layouts that no relayout needs."""

    __slots__ = ()

    if TYPE_CHECKING:
        _shards: tuple[int, ...]

        @property
        def sharding_specs(self) -> list[Spec]: ...
        def is_single_device(self) -> bool: ...
        def block_numbers(self, device: int) -> tuple[int, ...]: ...
        def block_shape(self, global_shape: Iterable[int], device: int | None = None) -> tuple[int, ...]: ...
        def _checked_shape(self, shape: Iterable[int]) -> tuple[int, ...]: ...
        @classmethod
        def _parsed(cls, layout_type: LayoutType, texts: list[str], mesh: Mesh) -> Self: ...

    @classmethod
    def from_single_device_mesh(cls, mesh: Mesh) -> Self:
        """Return the layout of whole arrays on the one device of *mesh*; LayoutError if it has dimensions.

        >>> from meshcomm import Layout
        >>> Layout.from_single_device_mesh(Mesh.from_device("CPU:0"))
        Layout.from_device('CPU:0')
        """
        if not isinstance(mesh, Mesh) or not mesh.is_single_device():
            raise LayoutError(f"type is single device, but mesh is not single device: {quote(mesh)}")
        return cls._make(mesh, (), None, LayoutType.SINGLE_DEVICE)

    @classmethod
    def from_device(cls, device: str) -> Self:
        """Return the layout of whole arrays on *device*.

        >>> from meshcomm import Layout
        >>> Layout.from_device("CPU:0").to_string()
        'maximal:true, mesh:CPU:0'
        """
        return cls.from_single_device_mesh(Mesh.from_device(device))

    def to_parted(self) -> Self:
        """Return this layout with the type PARTED; only text, wire form and value differ.

        >>> from meshcomm import Layout
        >>> Layout(["x"], Mesh(["CPU:0"], {"x": 1})).to_parted().to_string()
        'parted:x, mesh:|x=1|0|0|CPU:0'
        """
        if self.is_single_device():
            raise LayoutError(f"{quote(self)} is the layout of a single device; only a static layout can be parted")
        return self._make(self._mesh, self._axes, self._match, LayoutType.PARTED)

    def global_shape_from_local_shape(self, local_shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape of the array whose blocks all have *local_shape*.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED], Mesh(range(3), {"x": 3})).global_shape_from_local_shape((2, 5))
        (6, 5)
        """
        refuse_match(self)
        for axis, names in enumerate(self._axes):
            if isinstance(names, CutSpec):
                raise LayoutError(f"axis {axis} is {quote(names)}: its length does not follow from that of one block")
        shape = self._checked_shape(local_shape)
        shards = self._shards or (1,) * len(shape)  # a single device holds all of any array
        return tuple(length * blocks for length, blocks in zip(shape, shards, strict=True))

    def local_shape_from_global_shape(self, global_shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape that all blocks of an array of *global_shape* have; ShapeError where they differ.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout(["x", UNSHARDED], Mesh(range(3), {"x": 3})).local_shape_from_global_shape((6, 5))
        (2, 5)
        """
        refuse_match(self)
        shape = self._checked_shape(global_shape)
        for axis, (names, length, shards) in enumerate(zip(self._axes, shape, self._shards, strict=False)):
            cut = cut_of(names, length, shards)
            if cut.shortest < cut.longest:
                rule = f"{quote(names)} does" if isinstance(names, CutSpec) else f"{shards} shards do"
                method = "block_shape" if isinstance(names, CutSpec) else "block_slices"
                raise ShapeError(
                    f"axis {axis} of shape {shape} has {counted(length, 'element')}, which {rule} not divide evenly; "
                    f"{method}(global_shape, device) gives the block of each device"
                )
        return self.block_shape(shape, 0)

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return `block_numbers` of every device.

        >>> from meshcomm import Layout
        >>> Layout(["x"], Mesh(range(4), [("x", 2), ("y", 2)])).offset_to_shard()
        [(0,), (0,), (1,), (1,)]
        """
        return [self.block_numbers(device) for device in range(self._mesh.size)]

    def offset_tuple_to_global_index(self, offset_tuple: Sequence[int]) -> int:
        """Return the index of a block among all blocks in row-major order, from its number along each axis.

        If there are fewer numbers than axes, the missing ones are zero.

        >>> from meshcomm import Layout
        >>> Layout(["x", "y"], Mesh(range(6), [("x", 3), ("y", 2)])).offset_tuple_to_global_index((2, 1))
        5
        """
        refuse_match(self)
        numbers = tuple(as_integer(number, "block number", LayoutError) for number in listed("offset", offset_tuple))
        if len(numbers) > self.ndim:
            raise LayoutError(
                f"offset {quote(numbers)} has {counted(len(numbers), 'number')}; a layout for "
                f"{counted(self.ndim, 'axis')} has one per axis"
            )
        index = 0
        for axis, shards in enumerate(self._shards):
            number = numbers[axis] if axis < len(numbers) else 0
            if not 0 <= number < shards:
                raise LayoutError(
                    f"block {quote(number)} on axis {axis}, which has {shards}; 0 <= number < num_shards"
                )
            index = index * shards + number
        return index

    def to_string(self) -> str:
        """Return the layout as one line of text, with its mesh.

        Source: Layout::ToString of TensorFlow. Several mesh dimensions on one axis, which TensorFlow does not have,
        are joined by ``+``.

        >>> from meshcomm import UNSHARDED, Layout
        >>> Layout([("x", "y"), UNSHARDED], Mesh(["CPU:0"], [("x", 1), ("y", 1)])).to_string()
        'sharding_specs:x+y,unsharded, mesh:|x=1,y=1|0|0|CPU:0'
        """
        return layout_text.to_text(self._type, self.sharding_specs, self._mesh.to_string())

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Return the layout that *text* describes; LayoutError, or MeshError for its mesh, for other text.

        >>> from meshcomm import Layout
        >>> Layout.from_string("sharding_specs:x, mesh:|x=2|*CPU").shape
        [2]
        """
        if not isinstance(text, str):
            raise LayoutError(f"{type(text).__name__} is no text of a layout; from_string takes a str")
        layout_type, texts, mesh = layout_text.from_text(text)
        return cls._parsed(layout_type, texts, Mesh.from_string(mesh))

    def as_proto(self) -> wire.AnyMessage:
        """Return the layout as a LayoutProto: a protobuf message, or a stand-in without protobuf installed.

        >>> from meshcomm import Layout
        >>> layout = Layout(["x"], Mesh(["CPU:0"], [("x", 1)]))
        >>> Layout.from_proto(layout.as_proto()) == layout
        True
        """
        return wire.as_message(layout_text.LAYOUT_MESSAGE, self._wire_values())

    def mesh_proto(self) -> wire.AnyMessage:
        """Return the mesh as a MeshProto: a protobuf message, or a stand-in without protobuf installed.

        >>> from meshcomm import Layout
        >>> layout = Layout(["x"], Mesh(["CPU:0"], [("x", 1)]))
        >>> Mesh.from_proto(layout.mesh_proto()) == layout.mesh
        True
        """
        return self._mesh.as_proto()

    def serialized_string(self) -> bytes:
        """Return the bytes of the layout's LayoutProto.

        >>> from meshcomm import Layout
        >>> layout = Layout(["x"], Mesh(["CPU:0"], [("x", 1)]))
        >>> Layout.from_str(layout.serialized_string()) == layout
        True
        """
        return wire.encode(layout_text.LAYOUT_MESSAGE, self._wire_values())

    def _wire_values(self) -> wire.Values:
        return layout_text.to_wire(self._type, self.sharding_specs, self._mesh._wire_values())

    @classmethod
    def from_proto(cls, proto: object) -> Self:
        """Return the layout of a LayoutProto, given as any message with ``SerializeToString()`` or as bytes.

        >>> from meshcomm import Layout
        >>> layout = Layout(["x"], Mesh(["CPU:0"], [("x", 1)]))
        >>> Layout.from_proto(layout.serialized_string()).sharding_specs
        ['x']
        """
        try:
            values = wire.decode(layout_text.LAYOUT_MESSAGE, wire.as_bytes(proto))
        except wire.WireError as error:
            raise LayoutError(f"not a LayoutProto: {error}") from error
        layout_type, texts, mesh = layout_text.from_wire(values)
        return cls._parsed(layout_type, texts, Mesh._from_wire_values(mesh))

    @classmethod
    def from_str(cls, proto_str: bytes) -> Self:
        """Return the layout of the bytes of a LayoutProto, as ``serialized_string`` makes them.

        >>> from meshcomm import Layout
        >>> layout = Layout(["x"], Mesh(["CPU:0"], [("x", 1)]))
        >>> Layout.from_str(layout.serialized_string()).sharding_specs
        ['x']
        """
        if not isinstance(proto_str, bytes | bytearray | memoryview):
            raise LayoutError(
                f"{type(proto_str).__name__} holds no LayoutProto; from_str takes bytes, from_string takes text"
            )
        return cls.from_proto(proto_str)
