"""Trees of tensors: nested dicts, lists and tuples with tensors, variables, arrays, modules and plain values."""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from meshcomm._arguments import quote
from meshcomm._tracing import untraced
from meshcomm._types import Array, Json
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.errors import CheckpointError

Leaf: TypeAlias = DTensor | Array
Leaves: TypeAlias = dict[str, Leaf]

DEEPEST = 100
"""Levels of a tree: a deeper one has a circle, or is an attack."""


@runtime_checkable
class HoldsVariables(Protocol):
    """An object that names its variables, as a Module does."""

    def named_variables(self) -> list[tuple[str, Json]]:
        """Return the variables with their paths."""


def flattened(tree: object, separator: str = ".") -> tuple[object, Leaves]:
    """Return what JSON holds of *tree*, and its tensors by name: keys and indices joined by *separator*.

    A node is a pair of a kind and its content. ``TypeError`` for what no checkpoint can hold.

    >>> flattened({"w": np.zeros(2), "steps": [1, 2.5]})[0]
    ['dict', {'w': ['array', 'w'], 'steps': ['list', [['value', 1], ['value', 2.5]]]}]
    """
    leaves: Leaves = {}
    return _node(tree, (), leaves, separator), leaves


def _node(tree: object, keys: tuple[str, ...], leaves: Leaves, separator: str) -> object:
    path = separator.join(keys)
    if len(keys) > DEEPEST:
        raise CheckpointError(f"the tree has more than {DEEPEST} levels at {quote(path)}")
    if not isinstance(tree, DTensor) and isinstance(tree, HoldsVariables):
        tree = dict(tree.named_variables())
    found = unwrapped(untraced(tree))
    if isinstance(found, DTensor | np.ndarray | np.generic):
        name = path or "array"
        if name in leaves:
            raise CheckpointError(f"two tensors of the tree have the name {name!r}; rename one of their keys")
        leaves[name] = found if isinstance(found, DTensor) else np.asarray(found)
        return ["array", name]
    if isinstance(found, Mapping):
        nodes = {}
        for key, value in found.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a saved tree is a str, not {quote(key)} {_at(path)}")
            _check_text(key, "a key", path)
            nodes[key] = _node(value, (*keys, key.strip("/") if separator == "/" else key), leaves, separator)
        return ["dict", nodes]
    if isinstance(found, list | tuple):
        kind = "list" if isinstance(found, list) else "tuple"
        return [kind, [_node(each, (*keys, str(i)), leaves, separator) for i, each in enumerate(found)]]
    if isinstance(found, float) and not isfinite(found):
        return ["float", repr(float(found))]  # JSON has no word for it
    if isinstance(found, str):
        _check_text(found, "a text", path)
    if found is None or isinstance(found, bool | int | float | str):
        return ["value", found]
    raise TypeError(
        f"{type(found).__name__} {_at(path)} cannot be saved: a tree has tensors, arrays, dicts, lists, "
        "tuples, modules, numbers, texts and None"
    )


def _check_text(text: str, what: str, path: str) -> None:
    """Raise ``TypeError`` if the text has halves of characters, as names of files have that are no UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise TypeError(f"{what} of a saved tree is Unicode text, not {quote(text)} {_at(path)}")


def _at(path: str) -> str:
    return f"at {quote(path)}" if path else "at the top of the tree"


def tensors_in(tree: object, depth: int = 0) -> Iterator[DTensor]:
    """Yield the tensors of *tree*, also of one that cannot be saved."""
    if depth > DEEPEST:
        return
    if not isinstance(tree, DTensor) and isinstance(tree, HoldsVariables):
        tree = dict(tree.named_variables())
    found = unwrapped(untraced(tree))
    if isinstance(found, DTensor):
        yield found
    elif isinstance(found, Mapping | list | tuple):
        for each in found.values() if isinstance(found, Mapping) else found:
            yield from tensors_in(each, depth + 1)


def rebuilt(node: Json, array: Callable[[str], Json], depth: int = 0) -> Json:
    """Return the tree of *node*, with what *array* returns for each name.

    ``CheckpointError`` for another node, or a tree that is too deep.
    """
    if depth > DEEPEST:
        raise CheckpointError(f"the tree has more than {DEEPEST} levels")
    kind, content = _pair(node)
    if kind == "array" and isinstance(content, str):
        return array(content)
    if kind == "dict" and isinstance(content, dict):
        return {key: rebuilt(each, array, depth + 1) for key, each in content.items()}
    if kind in ("list", "tuple") and isinstance(content, list):
        found = [rebuilt(each, array, depth + 1) for each in content]
        return found if kind == "list" else tuple(found)
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "value" and (content is None or isinstance(content, bool | int | float | str)):
        return content
    raise CheckpointError(f"{quote(node)} is no node of a tree")


def names_in(node: Json) -> list[str]:
    """Return the names of the arrays below *node*. ``CheckpointError`` as for `rebuilt`."""
    names: list[str] = []
    rebuilt(node, names.append)
    return names


def _pair(node: Json) -> tuple[Json, Json]:
    if not isinstance(node, list) or len(node) != 2:
        raise CheckpointError(f"{quote(node)} is no node of a tree")
    return node[0], node[1]
