"""Functions of numpy.strings whose result dtype depends on the longest text. Each device computes its own block.

numpy.char has most of these functions, too. Functions that keep the dtype are in
:mod:`meshcomm.numpy.elementwise.applied`.
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

_OPERAND_COUNTS = {"center": 3, "ljust": 3, "rjust": 3, "replace": 4, "encode": 1, "decode": 1, "translate": 1}
"""Number of leading arguments that are operands; 2 for functions that are missing here."""


@implements_each(
    *(np.strings.multiply, np.strings.replace, np.strings.expandtabs, np.strings.mod, np.strings.zfill),
    *(np.strings.center, np.strings.ljust, np.strings.rjust, np.strings.partition, np.strings.rpartition),
    *(np.strings.encode, np.strings.decode, np.strings.translate, np.char.join),
)
def _for_texts(function: Function) -> Function:
    """Return NumPy's *function* for tensors of texts. Collective over the mesh: ranks agree on the longest text."""
    name = f"numpy.strings.{function.__name__.removeprefix('_')}"
    numpy_signature, count = signature(function), _OPERAND_COUNTS.get(function.__name__, 2)

    def wrapper(*args: object, **options: object) -> object:
        bound = numpy_signature.bind(*args, **options)
        bound.apply_defaults()
        arguments = list(bound.arguments.values())
        operands = [text_as_scalar(unwrapped(x)) for x in arguments[:count]]
        mesh = mesh_of(operands)
        agreed_operands = agree_on_plain(name, operands, mesh)
        if function in (np.strings.partition, np.strings.rpartition) and shape_of(agreed_operands[1]):
            raise TypeError(f"{name}: sep= is one text for DTensors, not an array")
        return _text_results(name, lambda *blocks: function(*blocks, *arguments[count:]), agreed_operands, mesh)

    return wrapper


def _text_results(name: str, function: Function, operands: list[Operand], mesh: Mesh) -> object:
    """Return the results of *function*, one tensor or several. Collective over the mesh."""
    refuse_outside(name, mesh, "how long the texts are")
    shape = broadcast_shape(name, [shape_of(x) for x in operands])
    layout = common_layout(shape, [x for x in operands if isinstance(x, DTensor)])
    blocks = aligned_blocks(name, operands, shape, layout)
    block_shape = layout.block_shape(shape)
    has_texts = 0 not in (block_shape if 0 not in shape else ())  # of an empty array, NumPy decides the dtype

    def compute() -> tuple[Array, ...] | None:
        result = function(*blocks) if has_texts else None
        return result if result is None or isinstance(result, tuple) else (result,)

    arrays = agree_on_result(name, mesh, f"{name} of {shape}", compute)
    count = 3 if name.endswith("partition") else 1
    dtypes = _agreed_dtypes(name, mesh, [(array.dtype.char, array.dtype.itemsize) for array in arrays or ()], count)
    results = tuple(
        make(
            np.empty(block_shape, dtype) if arrays is None else np.asarray(arrays[i], dtype, order="C"),
            layout,
            shape,
            dtype,
        )
        for i, dtype in enumerate(dtypes)
    )
    return results if count > 1 else results[0]


def _agreed_dtypes(name: str, mesh: Mesh, own_dtypes: list[tuple[str, int]], count: int) -> list[DType]:
    """Return *count* dtypes that fit the longest texts of all ranks; *own_dtypes* has kinds and bytes on this rank."""
    rows = Layout([tuple(dim for dim, _ in mesh.dims), ()], mesh)
    sizes = np.zeros((1, 2 * count), np.int64)
    sizes[0, : 2 * len(own_dtypes)] = [number for kind, size in own_dtypes for number in (ord(kind), size)]
    maxima = make(on_device(mesh, lambda _: sizes), rows, (mesh.size, 2 * count), sizes.dtype).max(axis=0)
    kinds = allgather_array(name, maxima).reshape(count, 2).tolist()
    return [np.dtype(f"{chr(kind)}{size // np.dtype(f'{chr(kind)}1').itemsize}") for kind, size in kinds]
