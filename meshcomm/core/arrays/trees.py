"""Trees: nested dicts, lists, tuples and modules, taken apart into their leaves and put together again.

A node describes a tree: ``[kind, content]``; the content of a leaf identifies its value. JSON can hold a node if it
can hold the leaves, and all keys are str or int.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._foreign import is_foreign
from meshcomm.core._tracing import is_traced, unpacked_traced, untraced
from meshcomm.core._types import AnyFunction
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.errors import CheckpointError, LayoutError

TreePath: TypeAlias = tuple[Hashable, ...]
"""The keys and indices that lead to a leaf."""

Children: TypeAlias = tuple[str, Iterable[tuple[Hashable, object]]]
"""The kind of a tree: "dict", "list", "tuple", or "items", a dict with integers as keys; and its children by key."""

Node: TypeAlias = list[object]
"""A kind, and its content."""

MAX_DEPTH = 100
"""Levels of a tree: a deeper one is taken for cyclic, or malicious."""


class ListIndex(int):
    """The index of an item in a list or tuple."""

    __slots__ = ()


class HoldsVariables(Protocol):
    """An object that names its variables, as a Module does."""

    def named_variables(self) -> Sequence[tuple[str, object]]:
        """Return the variables with their paths."""


class KeyTypeError(LayoutError, TypeError):
    """A key that is no str: a LayoutError, and the TypeError that TensorFlow raises."""


def children_of(tree: object, path: TreePath = ()) -> Children | None:
    """Return the children of *tree*, which is at *path*; None for a leaf. A module is a dict of its variables.

    >>> kind, children = children_of([5, 6])
    >>> kind, list(children)
    ('list', [(0, 5), (1, 6)])
    """
    if isinstance(tree, DTensor | np.ndarray):
        return None
    if len(path) > MAX_DEPTH:
        raise LayoutError(f"the tree has more than {MAX_DEPTH} levels at {quote('.'.join(map(str, path)))}")
    if holds_variables(tree):
        return "dict", tree.named_variables()
    return items_of_container(unpacked_traced(tree))


def children_of_array_tree(tree: object, path: TreePath = ()) -> Children | None:
    """Return the same as `children_of`, except that a list of numbers is a leaf."""
    return None if isinstance(tree, list | tuple) and tree and is_one_array(tree) else children_of(tree, path)


def is_one_array(items: Sequence[object], allow_arrays: bool = False) -> bool:
    """Return whether a list is one array: a list of numbers, or with *allow_arrays* also one of plain arrays."""
    excluded_types = (DTensor, Mapping) if allow_arrays else (DTensor, Mapping, np.ndarray)
    return not any(
        isinstance(unwrapped(item), excluded_types)
        or is_traced(item)
        or holds_variables(item)
        or item is None
        or (not allow_arrays and is_foreign(item))
        or (isinstance(item, list | tuple) and not is_one_array(item, allow_arrays))
        for item in items
    )


def holds_variables(tree: object) -> TypeGuard[HoldsVariables]:
    """Return whether *tree* names its variables, as a Module does."""
    return hasattr(type(tree), "named_variables")


def items_of_container(tree: object) -> Children | None:
    """Return the children of a dict, list or tuple; None for anything else."""
    if isinstance(tree, Mapping):
        return "dict", tree.items()
    if isinstance(tree, list | tuple):
        return "list" if isinstance(tree, list) else "tuple", zip(map(ListIndex, count()), tree, strict=False)
    return None


def name_of(path: TreePath, separator: str = ".") -> str:
    """Return the name of the item at *path*; ``LayoutError`` if a key is no str.

    >>> name_of(("blocks", ListIndex(0), "kernel"))
    'blocks.0.kernel'
    """
    for number, key in enumerate(path):
        if not isinstance(key, str | ListIndex):
            parent_name = separator.join(map(str, path[:number]))
            raise KeyTypeError(f"key {quote(key)} below {parent_name!r} is a {type(key).__name__}; keys must be str")
    return separator.join(map(str, path))


def node_of(
    tree: object,
    make_leaf: Callable[[TreePath, object], Node],
    get_children: Callable[[object, TreePath], Children | None] = children_of,
    path: TreePath = (),
) -> Node:
    """Return the node of *tree*.

    Parameters
    ----------
    make_leaf: function from a path and a leaf to the node of the leaf
    get_children: function from a tree and its path to its children, or None for a leaf
    path: path of *tree*

    >>> node_of({"w": [1, 2]}, lambda path, number: ["value", number])
    ['dict', {'w': ['list', [['value', 1], ['value', 2]]]}]
    """
    children = None if type(tree) is DTensor else get_children(tree, path)  # most leaves are tensors
    if children is None:
        return make_leaf(path, tree)
    kind, entries = children
    nodes = ((key, node_of(child, make_leaf, get_children, (*path, key))) for key, child in entries)
    if kind == "dict":
        return [kind, dict(nodes)]
    return [kind, [[key, node] if kind == "items" else node for key, node in nodes]]


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


def rebuild(
    node: object, load_array: AnyFunction, load_per_rank: Callable[[list[object]], object] | None = None
) -> Any:
    """Return the tree of *node*: *load_array* is called with the content of each array.

    *load_per_rank* is called with the content of each leaf that has a node for each rank. ``CheckpointError`` if a
    node is not valid, or the tree is too deep.

    >>> rebuild(["dict", {"w": ["array", "w"], "n": ["value", 2]}], str.upper)
    {'w': 'W', 'n': 2}
    """

    def load_leaf(kind: str, content: object) -> object:
        if kind == "array" and isinstance(content, str | int):
            return load_array(content)
        if kind == "per_rank" and isinstance(content, list) and load_per_rank is not None:
            return load_per_rank(content)
        return float(content) if kind == "float" and content in ("nan", "inf", "-inf") else NotImplemented

    return rebuild_with(node, load_leaf)


def rebuild_with(
    node: object, load_leaf: Callable[[str, object], object], noun: str = "tree", depth: int = 0
) -> object:
    """Return the tree of *node*: *load_leaf* is called with the kind and the content of each leaf.

    ``CheckpointError`` if it returns NotImplemented, if another node is invalid, and if the tree is too deep. *noun*
    is the noun for the tree in error texts.
    """
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the {noun} has more than {MAX_DEPTH} levels")
    kind, content = node if isinstance(node, list) and len(node) == 2 else (None, None)
    if kind == "dict" and isinstance(content, dict):
        return {key: rebuild_with(child, load_leaf, noun, depth + 1) for key, child in content.items()}
    if kind in ("list", "tuple") and isinstance(content, list):
        children = [rebuild_with(child, load_leaf, noun, depth + 1) for child in content]
        return children if kind == "list" else tuple(children)
    if kind == "items" and isinstance(content, list) and all(map(_is_item, content)):
        return {key: rebuild_with(child, load_leaf, noun, depth + 1) for key, child in content}
    if kind == "value" and (content is None or isinstance(content, bool | int | float | str)):
        return content
    result = load_leaf(kind, content) if isinstance(kind, str) else NotImplemented
    if result is NotImplemented:
        raise CheckpointError(f"{quote(node)} is no node of a {noun}")
    return result


def _is_item(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)


def names_in(node: object, load_per_rank: Callable[[list[object]], object] | None = None) -> list[str]:
    """Return the names of the arrays below *node*. ``CheckpointError`` and *load_per_rank* as for `rebuild`."""
    names: list[str] = []
    rebuild(node, names.append, load_per_rank)
    return names


def tensors_in(tree: object, depth: int = 0) -> Iterator[DTensor]:
    """Yield the tensors of *tree*, down to the maximum depth."""
    if depth > MAX_DEPTH:
        return
    children = children_of(tree)
    if children is not None:
        for _, child in children[1]:
            yield from tensors_in(child, depth + 1)
    elif isinstance(leaf := unwrapped(untraced(tree)), DTensor):
        yield leaf
