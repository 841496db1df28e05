"""Trees: nested dicts, lists, tuples and modules, taken apart into their leaves and put together again.

A node says what a tree is: a pair of a kind and its content, which for a leaf says where its value is. JSON can hold
it if the leaves can be held, and all keys are texts and integers.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._foreign import is_foreign
from meshcomm.core._tracing import is_traced, open_traced, untraced
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.errors import CheckpointError, LayoutError

TreePath: TypeAlias = tuple[Hashable, ...]
"""The keys and indices that lead to a leaf."""

Branch: TypeAlias = tuple[str, Iterable[tuple[Hashable, object]]]
"""A kind, "dict", "list", "tuple", or "items", a dict with integers as keys; and what is held, by key or index."""

Node: TypeAlias = list[object]
"""A kind, and its content."""

DEEPEST = 100
"""Levels of a tree: a deeper one has a circle, or is an attack."""


class ListIndex(int):
    """The index of an item in a list or tuple."""

    __slots__ = ()


class HoldsVariables(Protocol):
    """An object that names its variables, as a Module does."""

    def named_variables(self) -> Sequence[tuple[str, object]]:
        """Return the variables with their paths."""


class KeyTypeError(LayoutError, TypeError):
    """A key that is no str: a LayoutError, and the TypeError that TensorFlow raises."""


def branch(tree: object, path: TreePath = ()) -> Branch | None:
    """Return what *tree*, at *path*, holds; None for a leaf. A module is a dict of its variables.

    >>> kind, held = branch([5, 6])
    >>> kind, list(held)
    ('list', [(0, 5), (1, 6)])
    """
    if isinstance(tree, DTensor | np.ndarray):
        return None
    if len(path) > DEEPEST:
        raise LayoutError(f"the tree has more than {DEEPEST} levels at {quote('.'.join(map(str, path)))}")
    if holds_variables(tree):
        return "dict", tree.named_variables()
    return container(open_traced(tree))


def branch_of_arrays(tree: object, path: TreePath = ()) -> Branch | None:
    """Return what `branch` does, except that a list of numbers is a leaf."""
    return None if isinstance(tree, list | tuple) and tree and is_one_array(tree) else branch(tree, path)


def is_one_array(items: Sequence[object], of_arrays: bool = False) -> bool:
    """Return whether a list is one array: a list of numbers, or with *of_arrays* also one of plain arrays."""
    kinds = (DTensor, Mapping) if of_arrays else (DTensor, Mapping, np.ndarray)
    return not any(
        isinstance(unwrapped(item), kinds)
        or is_traced(item)
        or holds_variables(item)
        or item is None
        or (not of_arrays and is_foreign(item))
        or (isinstance(item, list | tuple) and not is_one_array(item, of_arrays))
        for item in items
    )


def holds_variables(tree: object) -> TypeGuard[HoldsVariables]:
    """Return whether *tree* names its variables, as a Module does."""
    return hasattr(type(tree), "named_variables")


def container(tree: object) -> Branch | None:
    """Return what a dict, list or tuple holds; None for anything else."""
    if isinstance(tree, Mapping):
        return "dict", tree.items()
    if isinstance(tree, list | tuple):
        return "list" if isinstance(tree, list) else "tuple", zip(map(ListIndex, count()), tree, strict=False)
    return None


def name_of(path: TreePath, separator: str = ".") -> str:
    """Return the name of what is at *path*; ``LayoutError`` if a key is no str.

    >>> name_of(("blocks", ListIndex(0), "kernel"))
    'blocks.0.kernel'
    """
    for number, key in enumerate(path):
        if not isinstance(key, str | ListIndex):
            below = separator.join(map(str, path[:number]))
            raise KeyTypeError(f"key {quote(key)} below {below!r} is a {type(key).__name__}; keys must be str")
    return separator.join(map(str, path))


def node_of(
    tree: object,
    leaf: Callable[[TreePath, object], Node],
    branch_of: Callable[[object, TreePath], Branch | None] = branch,
    path: TreePath = (),
) -> Node:
    """Return the node of *tree*.

    Parameters
    ----------
    leaf: function from a path and a leaf to its node
    branch_of: function from a tree and its path to its branch, or None for a leaf
    path: path of *tree*

    >>> node_of({"w": [1, 2]}, lambda path, number: ["value", number])
    ['dict', {'w': ['list', [['value', 1], ['value', 2]]]}]
    """
    node = None if type(tree) is DTensor else branch_of(tree, path)  # most leaves are tensors
    if node is None:
        return leaf(path, tree)
    kind, entries = node
    children = ((key, node_of(child, leaf, branch_of, (*path, key))) for key, child in entries)
    if kind == "dict":
        return [kind, dict(children)]
    return [kind, [[key, child] if kind == "items" else child for key, child in children]]


def leaf_nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes of the leaves below a *node*, always in one order.

    >>> list(leaf_nodes(["items", [[0, ["array", "w"]], ["n", ["list", [["value", 2]]]]]]))
    [['array', 'w'], ['value', 2]]
    """
    kind, content = node
    children: Iterable[Node] = ()
    if kind == "dict" and isinstance(content, dict):
        children = content.values()
    elif kind in ("list", "tuple", "items") and isinstance(content, list):
        children = [child for _, child in content] if kind == "items" else content
    else:
        yield node
    for child in children:
        yield from leaf_nodes(child)


def rebuilt(
    node: object, array: Callable[[Any], object], per_rank: Callable[[list[object]], object] | None = None
) -> Any:
    """Return the tree of *node*, with what *array* returns for the content of each array.

    *per_rank* returns the same for nodes of each rank. ``CheckpointError`` for another node, or a tree that is too
    deep.

    >>> rebuilt(["dict", {"w": ["array", "w"], "n": ["value", 2]}], str.upper)
    {'w': 'W', 'n': 2}
    """

    def leaf(kind: str, content: object) -> object:
        if kind == "array" and isinstance(content, str | int):
            return array(content)
        if kind == "per_rank" and isinstance(content, list) and per_rank is not None:
            return per_rank(content)
        return float(content) if kind == "float" and content in ("nan", "inf", "-inf") else NotImplemented

    return rebuilt_by(node, leaf)


def rebuilt_by(node: object, leaf: Callable[[str, object], object], what: str = "tree", depth: int = 0) -> object:
    """Return the tree of *node*, with what *leaf* returns for kinds and contents of leaves, or NotImplemented.

    ``CheckpointError`` for another node, or a tree that is too deep; in texts the tree is a *what*.
    """
    if depth > DEEPEST:
        raise CheckpointError(f"the {what} has more than {DEEPEST} levels")
    kind, content = node if isinstance(node, list) and len(node) == 2 else (None, None)
    if kind == "dict" and isinstance(content, dict):
        return {key: rebuilt_by(child, leaf, what, depth + 1) for key, child in content.items()}
    if kind in ("list", "tuple") and isinstance(content, list):
        children = [rebuilt_by(child, leaf, what, depth + 1) for child in content]
        return children if kind == "list" else tuple(children)
    if kind == "items" and isinstance(content, list) and all(map(_is_item, content)):
        return {key: rebuilt_by(child, leaf, what, depth + 1) for key, child in content}
    if kind == "value" and (content is None or isinstance(content, bool | int | float | str)):
        return content
    result = leaf(kind, content) if isinstance(kind, str) else NotImplemented
    if result is NotImplemented:
        raise CheckpointError(f"{quote(node)} is no node of a {what}")
    return result


def _is_item(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)


def names_in(node: object, per_rank: Callable[[list[object]], object] | None = None) -> list[str]:
    """Return the names of the arrays below *node*. ``CheckpointError`` and *per_rank* as for `rebuilt`."""
    names: list[str] = []
    rebuilt(node, names.append, per_rank)
    return names


def tensors_in(tree: object, depth: int = 0) -> Iterator[DTensor]:
    """Yield the tensors of *tree*, also of one that is too deep."""
    if depth > DEEPEST:
        return
    node = branch(tree)
    if node is not None:
        for _, child in node[1]:
            yield from tensors_in(child, depth + 1)
    elif isinstance(leaf := unwrapped(untraced(tree)), DTensor):
        yield leaf
