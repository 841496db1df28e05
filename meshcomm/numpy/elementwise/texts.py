"""Functions of numpy.strings whose results are as long as the longest text: each device computes those of its block.

numpy.char has most of them, too. Functions that keep the dtype are in :mod:`meshcomm.numpy.elementwise.applied`.
"""

from inspect import signature

import numpy as np

from meshcomm.blocks.align import agree_on_plain, aligned_blocks
from meshcomm.blocks.make import make, on_device, refuse_outside
from meshcomm.blocks.rules import Operand, broadcast_shape, common_layout, mesh_of, shape_of, text_as_scalar
from meshcomm.blocks.small import agree_on_result, allgather_array
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.numpy.elementwise.signatures import Function, implements_each

_OPERANDS = {"center": 3, "ljust": 3, "rjust": 3, "replace": 4, "encode": 1, "decode": 1, "translate": 1}
"""How many arguments are operands; two of other functions."""


@implements_each(
    *(np.strings.multiply, np.strings.replace, np.strings.expandtabs, np.strings.mod, np.strings.zfill),
    *(np.strings.center, np.strings.ljust, np.strings.rjust, np.strings.partition, np.strings.rpartition),
    *(np.strings.encode, np.strings.decode, np.strings.translate, np.char.join),
)
def _of_texts(function: Function) -> Function:
    """Return NumPy's *function* for tensors of texts. Collective over the mesh: the ranks tell how long theirs are."""
    name = f"numpy.strings.{function.__name__.removeprefix('_')}"
    form, count = signature(function), _OPERANDS.get(function.__name__, 2)

    def applied(*args: object, **options: object) -> object:
        bound = form.bind(*args, **options)
        bound.apply_defaults()
        arguments = list(bound.arguments.values())
        operands = [text_as_scalar(unwrapped(x)) for x in arguments[:count]]
        mesh = mesh_of(operands)
        agreed = agree_on_plain(name, operands, mesh)
        if function in (np.strings.partition, np.strings.rpartition) and shape_of(agreed[1]):
            raise TypeError(f"{name}: sep= is one text for DTensors, not an array")
        return _text_results(name, lambda *blocks: function(*blocks, *arguments[count:]), agreed, mesh)

    return applied


def _text_results(name: str, function: Function, operands: list[Operand], mesh: Mesh) -> object:
    """Return the results of *function*, one tensor or several. Collective over the mesh."""
    refuse_outside(name, mesh, "how long the texts are")
    shape = broadcast_shape(name, [shape_of(x) for x in operands])
    layout = common_layout(shape, [x for x in operands if isinstance(x, DTensor)])
    blocks = aligned_blocks(name, operands, shape, layout)
    size = layout.block_shape(shape)
    filled = 0 not in (size if 0 not in shape else ())  # NumPy says what it makes of no texts

    def compute() -> tuple[Array, ...] | None:
        result = function(*blocks) if filled else None
        return result if result is None or isinstance(result, tuple) else (result,)

    local = agree_on_result(name, mesh, f"{name} of {shape}", compute)
    count = 3 if name.endswith("partition") else 1
    dtypes = _agreed_dtypes(name, mesh, [(array.dtype.char, array.dtype.itemsize) for array in local or ()], count)
    results = tuple(
        make(np.empty(size, dtype) if local is None else np.asarray(local[i], dtype, order="C"), layout, shape, dtype)
        for i, dtype in enumerate(dtypes)
    )
    return results if count > 1 else results[0]


def _agreed_dtypes(name: str, mesh: Mesh, local: list[tuple[str, int]], count: int) -> list[DType]:
    """Return *count* dtypes, of the longest texts of all ranks; *local* are kinds and bytes on this one, if any."""
    rows = Layout([tuple(dim for dim, _ in mesh.dims), ()], mesh)
    sizes = np.zeros((1, 2 * count), np.int64)
    sizes[0, : 2 * len(local)] = [number for kind, size in local for number in (ord(kind), size)]
    longest = make(on_device(mesh, lambda _: sizes), rows, (mesh.size, 2 * count), sizes.dtype).max(axis=0)
    kinds = allgather_array(name, longest).reshape(count, 2).tolist()
    return [np.dtype(f"{chr(kind)}{size // np.dtype(f'{chr(kind)}1').itemsize}") for kind, size in kinds]
