"""Trees that a checkpoint can hold, of tensors, arrays and plain values."""

from collections.abc import Callable
from math import isfinite
from typing import TypeAlias

import numpy as np

from meshcomm.core._arguments import as_array, quote
from meshcomm.core._foreign import is_foreign, values_of
from meshcomm.core._tracing import untraced
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.trees import MAX_DEPTH, Children, Node, TreePath, children_of, node_of
from meshcomm.errors import CheckpointError
from meshcomm.storage.values import node_of_value


class PerRank:
    """A value that each rank has for itself, as `per_rank` makes it."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"per_rank({self.value!r})"


def per_rank(value: object) -> PerRank:
    """Return what saves a value of each rank in a tree, in a checkpoint: `load` gives each rank its own back.

    This needs as many ranks in the load as in the save. Otherwise each rank gets a list of all values, in the order of
    the ranks of the mesh. Other numbers and texts of a tree are saved as rank 0 has them.

    Parameters
    ----------
    value: a number, a text, None, an array of NumPy, or dicts, lists and tuples of these, such as the state of a
        generator of random numbers

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> path = tempfile.mkdtemp() + "/run"
    >>> def save():
    ...     rank = mc.create_mesh([("x", 2)]).rank
    ...     state = np.random.default_rng(rank).bit_generator.state
    ...     mc.save(path, {"rng": mc.per_rank(state), "at": mc.per_rank(rank)})
    >>> def load():
    ...     tree = mc.load(path)
    ...     return tree["at"], tree["rng"] == np.random.default_rng(tree["at"]).bit_generator.state
    >>> with mc.simulate(2) as world:
    ...     _ = world.run(save)
    ...     print(world.run(load))
    [(0, True), (1, True)]
    >>> with mc.simulate(1) as world:
    ...     print(world.run(lambda: mc.load(path)["at"]))
    [[0, 1]]
    """
    return PerRank(value)


Leaf: TypeAlias = DTensor | Array
Leaves: TypeAlias = dict[str, Leaf]


def flattened(
    tree: object, separator: str = ".", of_foreign: Callable[[object], Leaf] = values_of
) -> tuple[Node, Leaves]:
    """Return the node of *tree*, and its tensors by name: keys and indices joined by *separator*.

    *of_foreign* converts arrays of other libraries. ``TypeError`` for values that no checkpoint can hold,
    ``DTypeError`` for arrays that `distribute` also refuses.

    >>> flattened({"w": np.zeros(2), "steps": [1, 2.5]})[0]
    ['dict', {'w': ['array', 'w'], 'steps': ['list', [['value', 1], ['value', 2.5]]]}]
    """
    leaves: Leaves = {}

    def name_at(path: TreePath) -> str:
        return separator.join(str(key).strip("/") if separator == "/" else str(key) for key in path)

    def checked_branch(tree: object, path: TreePath) -> Children | None:
        if len(path) > MAX_DEPTH:
            raise CheckpointError(f"the tree has more than {MAX_DEPTH} levels at {quote(name_at(path))}")
        result = children_of(tree, path)
        if result is None or result[0] != "dict":
            return result
        entries, name = list(result[1]), name_at(path)
        for key, _ in entries:
            if type(key) is not int and not isinstance(key, str):
                raise TypeError(f"a key of a saved tree is a str or an int, not {quote(key)} {_location_text(name)}")
            _check_text(str(key), "a key", name)
        return "dict" if all(isinstance(key, str) for key, _ in entries) else "items", entries

    def leaf_node(path: TreePath, value: object) -> Node:
        item, name = unwrapped(untraced(value)), name_at(path)
        if is_foreign(item) and not isinstance(item, DTensor):
            item = of_foreign(item)
        if not isinstance(item, DTensor | np.ndarray | np.generic):
            return _plain_node(item, name)
        name = name or "array"
        if name in leaves:
            raise CheckpointError(f"two tensors of the tree have the name {name!r}; rename one of their keys")
        leaves[name] = item if isinstance(item, DTensor) else as_array(item)
        return ["array", name]

    return node_of(tree, leaf_node, checked_branch), leaves


def _plain_node(value: object, name: str) -> Node:
    if isinstance(value, float) and not isfinite(value):
        return ["float", repr(float(value))]  # JSON has no word for it
    if isinstance(value, str):
        _check_text(value, "a text", name)
    if isinstance(value, PerRank):
        try:
            return ["per_rank", [node_of_value(value.value)]]
        except TypeError as error:
            raise type(error)(f"per_rank {_location_text(name)}: {error}") from None  # also a DTypeError
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    raise TypeError(
        f"{type(value).__name__} {_location_text(name)} cannot be saved: a tree has tensors, arrays, dicts, lists, "
        "tuples, modules, numbers, texts, None and per_rank"
    )


def _check_text(text: str, subject: str, path: str) -> None:
    """Raise ``TypeError`` if the text has lone surrogates, as Python makes of file names that are not UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise TypeError(f"{subject} of a saved tree is Unicode text, not {quote(text)} {_location_text(path)}")


def _location_text(path: str) -> str:
    return f"at {quote(path)}" if path else "at the top of the tree"
