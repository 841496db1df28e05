"""Values other than tensors, which ranks exchange as JSON: attributes of files, and values of each rank.

A node is a pair of a kind and its content, as in :mod:`meshcomm.core.arrays.trees`; arrays are in it with their bytes.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import isfinite, prod

import numpy as np

from meshcomm.core._arguments import quote, refuse_masked
from meshcomm.core._json import are_counts, read
from meshcomm.core._types import Array
from meshcomm.core.arrays.trees import MAX_DEPTH, Children, Node, TreePath, items_of_container, node_of, rebuild_with
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.errors import DTypeError


def node_of_value(value: object) -> Node:
    """Return the node of a value: a number, a text, None, an array, or dicts, lists and tuples of them.

    ``TypeError`` for anything else, which is a ``DTypeError`` for a masked array.

    >>> node_of_value({"a": [1, np.inf]})
    ['dict', {'a': ['list', [['value', 1], ['float', 'inf']]]}]
    """
    return node_of(value, _leaf_node, _checked_children)


def _checked_children(value: object, path: TreePath) -> Children | None:
    if len(path) > MAX_DEPTH:
        raise TypeError(f"a value has more than {MAX_DEPTH} levels")
    for key in value if isinstance(value, Mapping) else ():
        if not isinstance(key, str):
            raise TypeError(f"a key of a dict is a str, not {quote(key)}")
    return items_of_container(value)


def _leaf_node(_: TreePath, value: object) -> Node:
    refuse_masked(value)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, [dtype_text(value.dtype), list(value.shape), b64encode(value.tobytes()).decode()]]
    if isinstance(value, complex):
        return ["complex", [repr(value.real), repr(value.imag)]]
    if isinstance(value, float) and not isfinite(value):
        return ["float", repr(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    raise TypeError(f"{type(value).__name__} {quote(value)} is no number, text, None, array, or dict or list of these")


def value_of_node(node: object) -> object:
    """Return the value of a node. ``CheckpointError`` if it is not a valid node.

    >>> value_of_node(node_of_value((None, np.arange(2))))
    (None, array([0, 1]))
    """
    return rebuild_with(node, _leaf_value, "value")


def _leaf_value(kind: str, content: object) -> object:
    try:
        if kind == "float":
            return float(read(str, content))
        if kind == "complex":
            return complex(*map(float, read(list, content)))
        if kind in ("array", "scalar"):
            array = _array(*read(list, content))
            return array[()] if kind == "scalar" else array
    except (TypeError, ValueError, DTypeError):
        pass
    return NotImplemented


def all_values(nodes: Sequence[object]) -> list[object]:
    """Return the values of nodes, one for each rank."""
    return [value_of_node(node) for node in nodes]


def _array(text: str, shape: list[int], data: str) -> Array:
    """Return a new array. ``ValueError`` if the number of bytes does not fit its shape."""
    dtype, buffer = dtype_of_text(text), b64decode(data, validate=True)
    if dtype.hasobject or not are_counts(shape) or prod(shape) * dtype.itemsize != len(buffer):
        raise ValueError(f"an array of {quote(shape)}")
    return np.frombuffer(buffer, dtype).reshape(shape).copy() if len(buffer) else np.zeros(shape, dtype)


def attribute(value: object) -> object:
    """Return the value of an attribute: a text, a number or a scalar of NumPy, an array, or a list of arrays.

    Compound values are unchanged, unless they contain texts or arrays of any length: then they become tuples.

    >>> attribute(b"m/s"), attribute(np.array(["a", "b"], object))
    ('m/s', array(['a', 'b'], dtype='<U1'))
    >>> attribute(np.array([np.arange(2), np.ones(1)], object))
    [array([0, 1]), array([1.])]
    """
    if isinstance(value, bytes):
        return decoded_text(value)
    if isinstance(value, list | tuple):
        return type(value)(map(attribute, value))
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return _numpy_attribute(value)
    return value if value is None or isinstance(value, bool | int | float | complex | str) else str(value)


def _numpy_attribute(value: Array | np.generic) -> object:
    """Return the value of an attribute that is an array or a scalar."""
    kind = value.dtype.kind
    if kind in "OST":
        elements = [attribute(element) for element in value.ravel().tolist()]
        if not all(isinstance(element, str) for element in elements):
            return elements
        return np.array(elements, dtype="U").reshape(value.shape)
    if value.dtype.names is not None and value.dtype.hasobject:
        return attribute(value.tolist())
    is_plain = kind in "biufcU" or value.dtype.names is not None
    return value.astype(value.dtype.newbyteorder("="), copy=False) if is_plain else str(value)


def with_numbers(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of attributes with numbers of Python in place of scalars of NumPy.

    >>> with_numbers({"level": np.float32(0.5)})
    {'level': 0.5}
    """
    return {
        key: value.item() if isinstance(value, np.generic) else deepcopy(value) for key, value in attributes.items()
    }


def decoded_text(data: bytes) -> str:
    """Return a text that a library wrote, in UTF-8 or else Latin-1, without the zero bytes at its end."""
    data = data.rstrip(b"\0")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


_PYTHON_DTYPES = {"f": "f8", "c": "c16", "M": "U", "m": "U"}
"""The dtype to convert to before ``tolist``, by kind: Python has no long double, and JSON no dates."""


def as_json(value: object) -> object:
    """Return the value of an attribute as JSON can hold it: arrays as lists, and as texts values that JSON has not.

    >>> as_json({"range": np.array([1.0, np.inf])})
    {'range': [1.0, 'inf']}
    """
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.astype(_PYTHON_DTYPES.get(value.dtype.kind, value.dtype)).tolist())
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, complex) or (isinstance(value, float) and not isfinite(value)):
        return str(value)
    return value
