"""What a checkpoint can hold of a tree: tensors, arrays and plain values."""

from math import isfinite
from typing import TypeAlias

import numpy as np

from meshcomm._arguments import quote
from meshcomm._tracing import untraced
from meshcomm._types import Array, Json
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.trees import DEEPEST, Branch, Path, branch, node_of
from meshcomm.errors import CheckpointError

Leaf: TypeAlias = DTensor | Array
Leaves: TypeAlias = dict[str, Leaf]


def flattened(tree: object, separator: str = ".") -> tuple[Json, Leaves]:
    """Return the node of *tree*, and its tensors by name: keys and indices joined by *separator*.

    ``TypeError`` for what no checkpoint can hold.

    >>> flattened({"w": np.zeros(2), "steps": [1, 2.5]})[0]
    ['dict', {'w': ['array', 'w'], 'steps': ['list', [['value', 1], ['value', 2.5]]]}]
    """
    leaves: Leaves = {}

    def name_at(path: Path) -> str:
        return separator.join(str(key).strip("/") if separator == "/" else str(key) for key in path)

    def held(tree: object, path: Path) -> Branch | None:
        if len(path) > DEEPEST:
            raise CheckpointError(f"the tree has more than {DEEPEST} levels at {quote(name_at(path))}")
        found = branch(tree, path)
        if found is None or found[0] != "dict":
            return found
        entries, name = list(found[1]), name_at(path)
        for key, _ in entries:
            if not isinstance(key, str):
                raise TypeError(f"a key of a saved tree is a str, not {quote(key)} {_at(name)}")
            _check_text(key, "a key", name)
        return "dict", entries

    def leaf(path: Path, value: object) -> Json:
        found, name = unwrapped(untraced(value)), name_at(path)
        if not isinstance(found, DTensor | np.ndarray | np.generic):
            return _plain(found, name)
        name = name or "array"
        if name in leaves:
            raise CheckpointError(f"two tensors of the tree have the name {name!r}; rename one of their keys")
        leaves[name] = found if isinstance(found, DTensor) else np.asarray(found)
        return ["array", name]

    return node_of(tree, leaf, held), leaves


def _plain(found: object, name: str) -> Json:
    if isinstance(found, float) and not isfinite(found):
        return ["float", repr(float(found))]  # JSON has no word for it
    if isinstance(found, str):
        _check_text(found, "a text", name)
    if found is None or isinstance(found, bool | int | float | str):
        return ["value", found]
    raise TypeError(
        f"{type(found).__name__} {_at(name)} cannot be saved: a tree has tensors, arrays, dicts, lists, "
        "tuples, modules, numbers, texts and None"
    )


def _check_text(text: str, what: str, path: str) -> None:
    """Raise ``TypeError`` if the text has halves of characters, as names of files have that are no UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise TypeError(f"{what} of a saved tree is Unicode text, not {quote(text)} {_at(path)}")


def _at(path: str) -> str:
    return f"at {quote(path)}" if path else "at the top of the tree"
