"""Halos: `halo` gives a tensor's blocks ghosts, and `Halo` keeps them up to date."""

import itertools
from collections.abc import Sequence
from typing import NoReturn, SupportsIndex

import numpy as np

from meshcomm.blocks.exchanges import BegunExchange, Repeated
from meshcomm.blocks.session import Session, session
from meshcomm.blocks.views import tensor_of_inner_blocks
from meshcomm.core._arguments import as_integer
from meshcomm.core._types import Array, Bytes, DType, Shape, Slices
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.nonblocking import Request
from meshcomm.core.layouts.boxes import box_shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes, new_block, new_bytes
from meshcomm.core.memory.copies import opaque
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import DTypeError, LayoutError, MeshError
from meshcomm.halos.boundaries import Boundary
from meshcomm.halos.exchange import HaloPattern
from meshcomm.halos.programs import REDUCE, UPDATE, UPDATE_MANY, ExchangeAction, KeptExchanges, ReduceBuffers
from meshcomm.halos.widths import Width

_serial_numbers = itertools.count()


class Halo:
    """The blocks of a tensor with ghosts around them, as `halo` makes it.

    `local` is the block of this rank with its ghosts; the array object stays the same. `inner` is the block in it.
    Both are None on ranks outside of the mesh. A program writes to `inner`, calls `update`, and reads `local`.
    """

    __module__ = "meshcomm"

    __slots__ = (
        "__weakref__",
        "_blocks",
        "_buffers",
        "_constants",
        "_ghosts",
        "_key",
        "_made",
        "_pattern",
        "_reduce_buffers",
        "_repeated",
        "_request",
        "_serial",
        "inner",
        "inner_slices",
        "local",
    )

    local: Array
    """The block of this rank with its ghosts; None outside of the mesh, which the type omits."""
    inner: Array
    """The block of this rank: a view into `local`."""
    inner_slices: tuple[slice, ...]
    """The slices of `inner` in `local`."""

    def __init__(self, pattern: HaloPattern, device: int | None) -> None:
        self._pattern, self._key = pattern, ("update halos", pattern)
        self.local = self.inner = None  # type: ignore[assignment]
        self.inner_slices = ()
        self._blocks: list[Bytes] = []
        self._buffers: dict[str, Bytes] = {}
        self._constants: list[tuple[Array, Boundary]] = []
        self._ghosts: list[Array] = []
        self._reduce_buffers: ReduceBuffers | None = None
        self._request: UpdateRequest | None = None
        self._repeated: KeptExchanges = {}
        self._serial = next(_serial_numbers)
        if device is not None:
            self._allocate(device)
        self._made = True

    def __setattr__(self, name: str, value: object) -> None:
        # h.inner += 1 is fine: it assigns the same object.
        if not name.startswith("_") and getattr(self, "_made", False) and getattr(self, name, None) is not value:
            raise AttributeError(f"a Halo cannot be given another {name}; write into it: h.{name}[...] = values")
        object.__setattr__(self, name, value)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a Halo cannot be copied or pickled: make another one with meshcomm.halo(h.tensor(), h.width)")

    def _allocate(self, device: int) -> None:
        pattern = self._pattern
        padded, block = pattern.padded(device), pattern.layout.block_box(pattern.shape, device)
        self.local = local = new_block(box_shape(padded), pattern.dtype)
        self._blocks = [as_bytes(local)]
        for axis, (padded_interval, block_interval) in enumerate(zip(padded, block, strict=True)):
            padded_start, start, stop = padded_interval[0], block_interval[0], block_interval[1]
            leading_slices, rule = (slice(None),) * axis, pattern.rules[axis]
            self._ghosts += [
                local[(*leading_slices, slice(start - padded_start))],
                local[(*leading_slices, slice(stop - padded_start, None))],
            ]
            if rule.boundary.name == "constant":
                outside_slices = [slice(max(0, -padded_start)), slice(max(0, rule.cut.length - padded_start), None)]
                self._constants += [
                    (local[(*leading_slices, outside_slice)], rule.boundary) for outside_slice in outside_slices
                ]
        self.inner_slices = pattern.inner_slices(device)
        inner_index: Slices = (..., *self.inner_slices)  # the ellipsis makes a view even without axes
        self.inner = local[inner_index]
        for ghosts in self._ghosts:  # corners may never be filled
            raw_ghosts = opaque(ghosts)
            raw_ghosts[...] = np.zeros((), raw_ghosts.dtype)

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The layout of the tensor without ghosts."""
        return self._pattern.layout

    @property
    def mesh(self) -> Mesh:
        """The mesh of the layout."""
        return self._pattern.layout.mesh

    @property
    def shape(self) -> Shape:
        """The shape of the global array, without ghosts."""
        return self._pattern.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self._pattern.dtype

    @property
    def width(self) -> tuple[Width, ...]:
        """The ghosts before and after a block, for each axis. With boundary "none", blocks at the edges have fewer.

        >>> import meshcomm as mc
        >>> mc.halo(mc.zeros((4, 4), int, mc.Layout.replicated(mc.create_mesh([("x", 1)]), 2)), [1, (0, 2)]).width
        ((1, 1), (0, 2))
        """
        return tuple(rule.width for rule in self._pattern.rules)

    @property
    def boundary(self) -> tuple[object, ...]:
        """The boundary of each axis: its name, or the constant.

        >>> import meshcomm as mc
        >>> t = mc.zeros((4, 4), int, mc.Layout.replicated(mc.create_mesh([("x", 1)]), 2))
        >>> mc.halo(t, 1, boundary=["periodic", 7]).boundary
        ('periodic', 7)
        """
        boundaries = [rule.boundary for rule in self._pattern.rules]
        return tuple(boundary.value if boundary.name == "constant" else boundary.name for boundary in boundaries)

    @property
    def corners(self) -> bool:
        """Whether ghosts that are outside of the block along several axes are filled."""
        return self._pattern.corners

    def slices(self, device: int) -> tuple[slice, ...]:
        """Return the slices of *device* with its ghosts in the global array: indices beyond the edges may be negative.

        >>> import meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     return mc.halo(mc.zeros(8, layout=rows), 2, "periodic").slices(0)
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program)[0])
        (slice(-2, 6, None),)
        """
        device = as_integer(device, "device", LayoutError)
        return tuple(slice(*span) for span in self._pattern.padded(device))

    def tensor(self) -> DTensor:
        """Return the tensor without ghosts. Its block is `inner`: the same memory, as for a slice.

        >>> import meshcomm as mc
        >>> h = mc.halo(mc.zeros(4, int, mc.Layout(["x"], mc.create_mesh([("x", 1)]))), 1, "periodic")
        >>> h.inner[:] = 5
        >>> h.local.shape, h.tensor().to_numpy().tolist()
        ((6,), [5, 5, 5, 5])
        """
        padded_shape = tuple(n + sum(rule.width) for n, rule in zip(self.shape, self._pattern.rules, strict=True))
        return tensor_of_inner_blocks(self.inner, self.layout, self.shape, self.dtype, padded_shape)

    def __repr__(self) -> str:
        shape = f"{self.local.shape} with ghosts here" if self._blocks else "this rank is outside of the mesh"
        return f"Halo of {self._pattern}; {shape}"

    # -- exchanges of ghosts ------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Fill the ghosts from the blocks that own their elements. Collective over the mesh.

        Nothing is allocated and nothing is planned: a program may call it in every step. When it returns, this rank
        may write to `inner` again. Source: DMGlobalToLocal of PETSc, ``update_halo!`` of ImplicitGlobalGrid.jl.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     h = mc.halo(mc.zeros(4, "i8", rows), 1, "periodic")
        ...     h.inner[:] = [10, 11] if h.mesh.rank == 0 else [20, 21]
        ...     h.update()
        ...     return h.local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[21, 10, 11, 20], [11, 20, 21, 10]]
        """
        with session("halo update", self.mesh) as call_session:
            self._refuse_in_flight()
            if call_session is None:
                return
            UPDATE.run(call_session, self._key, (self._pattern,), (self._blocks,))
        if self._constants:
            self._fill_constant_ghosts()

    def _fill_constant_ghosts(self) -> None:
        for ghosts, boundary in self._constants:
            ghosts[...] = boundary.value

    def _refuse_in_flight(self) -> None:
        if self._request is not None:
            if self._request.in_flight:
                raise MeshError(
                    "an update of this halo is in flight: wait for it first, by what start_update returned or by the "
                    "wait() of the halo"
                )
            self._request = None

    def start_update(self) -> "UpdateRequest":
        """Begin to fill the ghosts, and return a request: call its `wait`. Collective over the mesh.

        Until then the program may read `inner`, and compute what needs no ghosts. It may write to neither `inner` nor
        `local`, which neighbours read until `wait` returns. All ranks start their updates in one order; they may wait
        in any order. Within a node, this call exchanges ghosts with the neighbours that have already called it; the
        others exchange theirs with this rank when they call it. If nobody waits for a request, the job ends with an
        error when the program ends; a program that has lost the request calls `wait` of the halo. Source:
        DMGlobalToLocalBegin and End of PETSc.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     h = mc.halo(mc.distribute(np.arange(6), rows), 1)
        ...     request = h.start_update()
        ...     inside = h.inner[1:-1].sum()  # needs no ghosts
        ...     request.wait()
        ...     return int(inside), int(h.local.sum())
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [(1, 6), (4, 14)]
        """
        with session("start of a halo update", self.mesh) as call_session:
            self._refuse_in_flight()
            if call_session is None:
                self._keep_request((None, None))
            else:
                _update_by(
                    [self],
                    "start an update",
                    call_session,
                    lambda exchange: exchange.begin(self._buffer, self._keep_request),
                )
        assert self._request is not None
        return self._request

    def _keep_request(self, begun: BegunExchange) -> None:
        self._request = UpdateRequest(self, *begun)

    def wait(self) -> None:
        """Wait for the update that `start_update` began, if one is in flight. Collective over the mesh.

        The same as `wait` of the request, for a program that does not keep the request.

        >>> import numpy as np, meshcomm as mc
        >>> h = mc.halo(mc.distribute(np.arange(3), mc.Layout(["x"], mc.create_mesh([("x", 1)]))), 1, "periodic")
        >>> request = h.start_update()
        >>> h.wait()
        >>> h.local.tolist()
        [2, 0, 1, 2, 0]
        """
        if self._request is not None:
            self._request.wait()

    def _buffer(self, purpose: str, size: int) -> Bytes:
        buffer = self._buffers.get(purpose)
        if buffer is None or len(buffer) != size:
            buffer = self._buffers[purpose] = new_bytes(size)
        return buffer

    def reduce(self) -> None:
        """Add the ghosts to their source elements, and set the ghosts to zero. Collective over the mesh.

        It is the adjoint of `update`: ``<update(x), y> == <x, reduce(y)>``, where products are over all of `local`.
        So it is the gradient of `update`, and sums what ranks have computed for elements of others. Ghosts
        outside of the array are discarded on axes with a constant boundary. Ghosts are added in the order of the
        devices that have them: results do not depend on timing. Source: DMLocalToGlobal with ADD_VALUES of PETSc.

        ``DTypeError`` if elements are not numbers.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     h = mc.halo(mc.zeros(4, "i8", rows), 1)
        ...     h.local[:] = 1
        ...     h.reduce()
        ...     return h.inner.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 2], [2, 1]]
        """
        with session("halo reduce", self.mesh) as call_session:
            self._refuse_in_flight()
            if self.dtype.kind not in "biufc" and not _has_sums(self.dtype):
                raise DTypeError(f"ghosts of dtype {self.dtype} cannot be added")
            if call_session is None:
                return
            key = "reduce a halo", self._pattern
            arguments = self.local, self._blocks[0], self._reduce_buffers
            self._reduce_buffers = REDUCE.run(call_session, key, (self._pattern,), arguments)
        for target, ghosts in self._reduce_buffers.sums:
            np.add(target, ghosts, out=target)
        for ghosts in self._ghosts:
            ghosts[...] = 0


class UpdateRequest(Request):
    """An update of a halo that may still be in flight, as `start_update` of a `Halo` returns it."""

    __slots__ = ("_halo", "in_flight")

    begun_by = "start_update of a halo"
    operation = "halo update"

    def __init__(self, halo: Halo, *begun: *BegunExchange) -> None:
        self._halo = halo
        self.in_flight = True
        """Whether the update may be incomplete. It is True even without an exchange: so a program that forgets to wait
        gets the same error on one rank as on several."""
        super().__init__(*begun)
        if begun[0] is None:
            halo._fill_constant_ghosts()

    def test(self) -> bool:
        """Return whether the ghosts are filled, so that `wait` returns at once."""
        self.in_flight = not super().test()
        return not self.in_flight

    def wait(self) -> Halo:
        """Wait until the ghosts are filled, and return the halo. Collective over the mesh."""
        super().wait()
        self.in_flight = False
        return self._halo

    def _complete(self) -> None:
        self._halo._fill_constant_ghosts()
        super()._complete()

    def __str__(self) -> str:
        return f"update of {self._halo._pattern}"


def _has_sums(dtype: DType) -> bool:
    try:
        return np.add(np.zeros(1, dtype), np.zeros(1, dtype)).dtype == dtype
    except TypeError:
        return False


@refusable
def update_halos(halos: Sequence[Halo]) -> None:
    """Update several halos in one exchange. Collective over their meshes.

    They may have any shapes, dtypes, widths and boundaries. Each rank sends one message to another rank, whatever the
    number of halos on one mesh. Source: exchanges of several fields in GHEX and ImplicitGlobalGrid.jl.

    ``LayoutError`` if *halos* are no halos, or if one is there twice.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     a = mc.halo(mc.zeros(4, "f8", rows), 1)
    ...     b = mc.halo(mc.zeros((4, 1), "i4", mc.Layout(["x", mc.UNSHARDED], rows.mesh)), {0: 1})
    ...     a.inner[:], b.inner[:] = 1, 2
    ...     mc.update_halos([a, b])
    ...     return a.local.tolist(), b.local.ravel().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    ([1.0, 1.0, 1.0], [2, 2, 2])
    """
    halo_list = list(halos)
    for member in halo_list:
        if not isinstance(member, Halo):
            raise LayoutError(f"update_halos takes halos, not {type(member).__name__}")
        member._refuse_in_flight()
    if len({*map(id, halo_list)}) < len(halo_list):
        raise LayoutError("update_halos: a halo is there twice")
    by_mesh: dict[Mesh, list[Halo]] = {}
    for member in halo_list:
        by_mesh.setdefault(member.mesh, []).append(member)
    for group in by_mesh.values():
        if len(group) == 1:
            group[0].update()
        else:
            _update_together(group)


def _update_together(halos: list[Halo]) -> None:
    with session(f"update of {len(halos)} halos", halos[0].mesh) as call_session:
        if call_session is None:
            return
        _update_by(halos, "update halos together", call_session, Repeated.run)
    for member in halos:
        member._fill_constant_ghosts()


def _update_by(halos: Sequence[Halo], operation: str, call_session: Session, run: ExchangeAction) -> None:
    """Call *run* with the exchange that updates *halos* of one mesh. Collective over the mesh."""
    patterns, serials = tuple([member._pattern for member in halos]), tuple([member._serial for member in halos])
    arguments = halos[0]._repeated, serials, [member._blocks[0] for member in halos], run
    UPDATE_MANY.run(call_session, (operation, *patterns), (patterns, operation), arguments)
