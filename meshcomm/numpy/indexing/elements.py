"""One element: ``t[i, j]``, which all devices get from its owner in one message, and ``t[i, j] = number``.

A loop reads each element once. So nothing is cached by indices, and nothing is planned. In scripts,
:mod:`meshcomm.numpy.indexing.pages` fetches many elements at once.
"""

from functools import lru_cache
from typing import TypeGuard

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.blocks.small import broadcast_bytes
from meshcomm.core._tuning import SMALL_MESHES
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.slicing import Items
from meshcomm.numpy.indexing._elements import ElementOwners, element_of, register_functions, to_set
from meshcomm.numpy.indexing.pages import LINE, fetch_elements, pages_of

__all__ = ["element_of", "is_element_index", "to_set"]


def _fetched_element(tensor: DTensor, index: tuple[int, ...]) -> DTensor | None:
    """Return an element that is in no page. Collective over the mesh; None: the slow path has to take the index."""
    spec = tensor._spec
    owners = _owners_of(spec)
    if owners is None:
        return None
    location = owners.find(index)
    if location is None:
        return None
    device, block_index = location
    block = tensor._block
    if owners.is_whole:
        return _as_tensor(block[block_index], spec)
    if is_scripted():
        page_element = _paged_element(tensor, index, owners)
        if page_element is not None:
            return _as_tensor(page_element, spec)
    own_bytes = block[block_index].tobytes() if owners.is_here(device) else b""
    data = broadcast_bytes(f"t{list(index)}", spec, hash((device, *block_index)), own_bytes, device)
    return _as_tensor(np.ndarray((), spec.dtype, data), spec)


def _as_tensor(value: object, spec: TensorSpec) -> DTensor:
    owners = _owners_of(spec)
    assert owners is not None
    return make(np.array(value, spec.dtype), owners.result_layout, (), spec.dtype)


def _paged_element(tensor: DTensor, index: tuple[int, ...], owners: ElementOwners) -> object:
    """Return an element by fetching a page with it; None if it is to be fetched alone. Collective over the mesh."""
    pages, flat_index = pages_of(tensor), 0
    for i, n in zip(index, tensor.shape, strict=True):
        flat_index = flat_index * n + i % n
    flat_indices = pages.elements_to_fetch(flat_index)
    pages.count_call(tensor)
    if pages.whole is None:
        if flat_indices is None:
            return None
        pages.keep(fetch_elements(tensor, flat_indices, owners), flat_indices)
    element = pages.find(index)
    assert element is not None
    return element[0]


def is_element_index(items: Items, tensor: DTensor) -> TypeGuard[tuple[int, ...]]:
    """Return whether an index is one integer for each axis, and this rank has a block."""
    return tensor._has_block and tensor.ndim > 0 and all(type(item) is int for item in items)


@lru_cache(maxsize=1024)
def _owners_of(spec: TensorSpec) -> ElementOwners | None:
    """Return the owners of the elements of tensors of a spec; None for tensors whose elements take the slow path."""
    if spec.dtype.kind not in "biufc" or spec.mesh.size > SMALL_MESHES or 0 in spec.shape:
        return None
    layout, cuts = spec.layout, [spec.layout.cut(axis, n) for axis, n in enumerate(spec.shape)]
    if not all(cut.is_consecutive for cut in cuts):
        return None
    block_numbers = [layout.block_numbers(device) for device in range(spec.mesh.size)]
    device_of = {numbers: device for device, numbers in reversed(list(enumerate(block_numbers)))}
    starts = tuple(tuple(cut.consecutive.start(number) for number in range(cut.blocks)) for cut in cuts)
    result_layout = TensorSpec(layout._recut(()), (), spec.dtype).layout  # the layout object of the cached spec
    is_whole = layout.is_fully_replicated()
    return ElementOwners(spec.mesh, spec.shape, spec.dtype, starts, device_of, block_numbers, is_whole, result_layout)


register_functions(_owners_of, _fetched_element, _as_tensor, LINE)
