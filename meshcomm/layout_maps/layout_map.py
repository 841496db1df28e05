"""LayoutMap: rules that give the variables of a model their layouts by name."""

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._arguments import as_array, counted, quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.many import say_unused
from meshcomm.core.arrays.trees import KeyTypeError, Node, TreePath, children_of_array_tree, name_of, node_of, rebuild
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_repr
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.errors import LayoutError, MeshError
from meshcomm.layout_maps.layout_report import LayoutReport, report_of
from meshcomm.layout_maps.scopes import scope

Mode: TypeAlias = Literal["match", "search", "fullmatch"]


class KeyPattern(Protocol):
    """A compiled regular expression, of `re` or of another engine with its methods."""

    @property
    def pattern(self) -> str: ...

    def match(self, string: str, /) -> object: ...
    def search(self, string: str, /) -> object: ...
    def fullmatch(self, string: str, /) -> object: ...


Key: TypeAlias = str | KeyPattern
Tree: TypeAlias = Mapping[str, "ArrayLike | Tree | None"] | Sequence["ArrayLike | Tree | None"]
Nested: TypeAlias = Any  # a tree with another object in place of each array
D = TypeVar("D")


class HasShape(Protocol):
    """An array or a variable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""


AxesOrShape: TypeAlias = int | Iterable[int] | HasShape  # a number of axes, a shape, or an object with a shape

_MODES: tuple[Mode, ...] = get_args(Mode)
_FLAGS = {re.ASCII: "a", re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
_NOTHING: Any = object()

_MAX_CACHED_NAMES = 2**16
"""The most names whose rules are cached."""


class _TreeDescription(NamedTuple):
    """The node of a tree, the name and number of axes of each array, and the arrays on ranks that have them."""

    node: object
    ndims: list[tuple[str, int]]
    arrays: list[Any]


class LayoutMap(MutableMapping[str, Layout]):
    """Layouts by name. A key is both a name and a regular expression.

    ``m[name]`` looks for exactly this key. Then it tries the keys in the order of insertion, and returns the layout of
    the first one that matches as ``re.match`` does: from the start of the name, but not to its end. If none matches,
    it returns None. All other operations (``in``, ``pop``, ``setdefault``, ``==``, …) are those of a dict, with exact
    keys, except that no key can be stored twice.

    A key may be a compiled pattern; its text is stored. Python's ``re`` may take a time that doubles with each letter
    of a name, as with ``(a+)+$``. Compile untrusted patterns by google-re2, which takes linear time:
    ``m[re2.compile(text)] = layout``. ``LayoutError`` for a wrong key, pattern or layout. Source:
    tf.keras.dtensor.experimental.LayoutMap.

    Parameters
    ----------
    mesh: the mesh on which variables without a rule are replicated
    mode: match of keys and names: "match", or as in versions of Keras 3 "search" or "fullmatch", where several
        matches are an error

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(["CPU:0", "CPU:1"], [("x", 2)])
    >>> m = LayoutMap(mesh)
    >>> m[".*dense.*kernel"] = mc.Layout([mc.UNSHARDED, "x"], mesh)
    >>> m[".*dense.*bias"] = mc.Layout(["x"], mesh)
    >>> m["dense_1.kernel"].sharding_specs, m["conv.kernel"], "dense_1.kernel" in m
    (['unsharded', 'x'], None, False)
    """

    __module__ = "meshcomm"

    def __init__(self, mesh: Mesh | None = None, mode: Mode = "match") -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise MeshError(f"the mesh of a LayoutMap must be a Mesh or None, not {quote(mesh)}")
        if mode not in _MODES:
            raise LayoutError(f"mode {quote(mode)}; it must be one of {', '.join(_MODES)}")
        self._mesh = mesh
        self._mode = mode
        self._layouts: dict[str, Layout] = {}
        self._matchers: dict[str, Callable[[str], object]] = {}
        self._rules_by_name: dict[str, str | None] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_rules_by_name": {}}

    @property
    def mode(self) -> Mode:
        """How keys match names: "match", "search" or "fullmatch"."""
        return self._mode

    def get_default_mesh(self) -> Mesh | None:
        """Return the mesh on which variables without a rule are replicated, if any.

        >>> import meshcomm as mc
        >>> LayoutMap(mc.Mesh(range(2), {"x": 2})).get_default_mesh(), LayoutMap().get_default_mesh()
        (Mesh(x=2), None)
        """
        return self._mesh

    # -- lookup -------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Layout | None:  # type: ignore[override]
        """Return the layout of the rule for the name *key*, or None."""
        rule = self._rule(_pattern_text(key))
        return None if rule is None else self._layouts[rule]

    @overload
    def get(self, key: Key, default: None = None) -> Layout | None: ...

    @overload
    def get(self, key: Key, default: D) -> Layout | D: ...

    def get(self, key: Key, default: object = None) -> object:
        """Return the layout of the rule for the name *key*, or *default*.

        >>> import meshcomm as mc
        >>> m = LayoutMap()
        >>> m[".*bias"] = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> m.get("dense.bias").sharding_specs, m.get("dense.kernel", "no rule")
        (['x'], 'no rule')
        """
        layout = self[key]
        return default if layout is None else layout

    def layout_for(self, name: str, rank: int | None = None) -> Layout | None:
        """Return the layout for an array called *name* with *rank* axes.

        If there is no rule for the name, return the replicated layout on the map's mesh, or None without a mesh or
        *rank*. ``LayoutError`` if the rule is for another number of axes.

        >>> import meshcomm as mc
        >>> m = LayoutMap(mc.Mesh(["CPU:0"], [("x", 1)]))
        >>> m.layout_for("head.bias", 1).sharding_specs
        ['unsharded']
        """
        rule = self._rule(_pattern_text(name))
        if rule is None:
            return None if self._mesh is None or rank is None else Layout.replicated(self._mesh, rank)
        layout = self._layouts[rule]
        if rank is not None and rank != layout.ndim:
            raise LayoutError(
                f"{name!r} has {counted(rank, 'axis')}, but its rule {rule!r} has a layout for "
                f"{counted(layout.ndim, 'axis')}, {layout.specs_text}"
            )
        return layout

    def _rule(self, name: str) -> str | None:
        """Return the rule for *name*, or None; ``LayoutError`` if several match and the mode allows only one."""
        rules_by_name = self._rules_by_name  # read once: a change of the rules replaces the dict
        rule_of_name: str | None = rules_by_name.get(name, _NOTHING)
        if rule_of_name is not _NOTHING:
            return rule_of_name
        rules = self._matching_rules(name)
        rule = next(rules, None)
        if self._mode != "match" and rule is not None and rule != name:
            matching_rules = [rule, *rules]
            if len(matching_rules) > 1:
                raise LayoutError(
                    f"Path {name!r} matches multiple layout specification keys: {matching_rules}. In mode "
                    f"{self._mode!r} each path may match at most one key, unless it is a key itself."
                )
        if len(rules_by_name) >= _MAX_CACHED_NAMES:
            rules_by_name.clear()
        rules_by_name[name] = rule
        return rule

    def _matching_rules(self, name: str) -> Iterator[str]:
        """Yield the rules that match *name*; the first one applies."""
        if name in self._layouts:
            yield name
        for rule, matcher in self._matchers.items():
            if matcher(name) and rule != name:
                yield rule

    # -- the dict -----------------------------------------------------------------------------------------------------

    def __setitem__(self, key: Key, layout: Layout) -> None:
        """Add a rule; ``LayoutError`` if the key is stored already, or *key* or *layout* is wrong."""
        self.update([(key, layout)])

    def update(self, other: Any = (), /, **kwds: Layout) -> None:  # dict.update takes anything with keys
        """Add the rules of a mapping or of pairs, and those given by keyword. After an error, none is added.

        Source: dict.update.

        >>> import meshcomm as mc
        >>> layout = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> m = LayoutMap()
        >>> m.update({".*kernel": layout, ".*bias": layout})
        >>> list(m)
        ['.*kernel', '.*bias']
        """
        new_layouts: dict[str, Layout] = {}
        matchers: dict[str, Callable[[str], object]] = {}
        for key, layout in [*_pairs(other), *kwds.items()]:
            rule = _pattern_text(key)
            checked_layout = _checked_layout(rule, layout)
            old_layout = new_layouts.get(rule, self._layouts.get(rule))
            if old_layout is not None:
                raise LayoutError(
                    f"{rule} already exist in the LayoutMap with value {quote(old_layout)}. Please make sure to not "
                    "use duplicated keys."
                )
            pattern = _compiled_rule(rule) if isinstance(key, str | re.Pattern) else key
            new_layouts[rule], matchers[rule] = checked_layout, getattr(pattern, self._mode)
        self._layouts |= new_layouts
        self._matchers |= matchers
        self._rules_by_name = {}

    def __delitem__(self, key: Key) -> None:
        """Remove the rule of exactly this key; ``KeyError`` if there is none."""
        if key not in self:
            raise KeyError(key)
        rule = _pattern_text(key)
        del self._layouts[rule], self._matchers[rule]
        self._rules_by_name = {}

    @overload
    def pop(self, key: Key) -> Layout: ...

    @overload
    def pop(self, key: Key, default: D) -> Layout | D: ...

    def pop(self, key: Key, default: object = _NOTHING) -> object:
        """Remove the rule of exactly this key and return its layout, or *default*; ``KeyError`` without one.

        >>> import meshcomm as mc
        >>> m = LayoutMap()
        >>> m[".*bias"] = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> m.pop(".*bias").sharding_specs, m.pop(".*bias", None)
        (['x'], None)
        """
        if key not in self:
            if default is _NOTHING:
                raise KeyError(key)
            return default
        layout = self._layouts[_pattern_text(key)]
        del self[key]
        return layout

    def setdefault(self, key: Key, default: Layout | None = None) -> Layout:
        """Return the layout stored under exactly this key; store *default* first if there is none.

        >>> import meshcomm as mc
        >>> m, mesh = LayoutMap(), mc.Mesh(range(2), {"x": 2})
        >>> m.setdefault(".*bias", mc.Layout(["x"], mesh)).sharding_specs
        ['x']
        >>> m.setdefault(".*bias", mc.Layout.replicated(mesh, 1)).sharding_specs
        ['x']
        """
        if key not in self:
            self.update([(key, default)])
        return self._layouts[_pattern_text(key)]

    def copy(self) -> "LayoutMap":
        """Return a map with the same mesh, mode and rules.

        >>> import meshcomm as mc
        >>> m = LayoutMap()
        >>> other = m.copy()
        >>> other[".*bias"] = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> len(other), len(m)
        (1, 0)
        """
        result = LayoutMap(self._mesh, self._mode)
        result._layouts, result._matchers = self._layouts.copy(), self._matchers.copy()
        return result

    def items(self) -> ItemsView[str, Layout]:
        """Return a view on the keys and layouts, in the order of insertion.

        >>> import meshcomm as mc
        >>> m = LayoutMap()
        >>> m[".*bias"] = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> list(m.items())
        [('.*bias', Layout(['x'], Mesh(x=2)))]
        """
        return self._layouts.items()

    def __contains__(self, key: object) -> bool:
        """Return whether there is a rule of exactly this key."""
        return _is_key(key) and _pattern_text(key) in self._layouts

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __repr__(self) -> str:
        rules = [f"{rule!r}: {specs_repr(layout.sharding_specs)}" for rule, layout in self._layouts.items()]
        return f"LayoutMap({self._mesh!r}, {self._mode!r}: {{{', '.join(rules)}}})"

    # -- use ----------------------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which the variables of modules get their layouts from this map.

        The path of a variable, such as ``d1.kernel`` or ``blocks.0.kernel``, leads to it from the outermost `Module`
        made in the scope. When the scope ends, each rank makes its own blocks, in the layouts of the rules for these
        paths. Variables without a rule are replicated on the map's mesh. Only the innermost scope applies, and only in
        its own thread. Later changes of the map have no effect. ``LayoutError`` at the end of the scope if a rule is
        for another number of axes, or if there is neither a rule nor a mesh. Source:
        tf.keras.dtensor.experimental.layout_map_scope.

        >>> import meshcomm as mc
        >>> class Dense(mc.Module):
        ...     def __init__(self):
        ...         self.kernel = mc.Variable(mc.random_normal(0), (4, 2))
        >>> class Net(mc.Module):
        ...     def __init__(self):
        ...         self.d1 = Dense()
        >>> def program():
        ...     mesh = mc.create_mesh([("x", 2)])
        ...     m = mc.LayoutMap(mesh)
        ...     m["d1.kernel"] = mc.Layout(["x", mc.UNSHARDED], mesh)
        ...     with m.scope():
        ...         net = Net()
        ...     return net.d1.kernel.path, net.d1.kernel.local.shape
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [('d1.kernel', (2, 2)), ('d1.kernel', (2, 2))]
        """
        return scope(self._layout_of_variable)

    def _layout_of_variable(self, path: str, rank: int) -> Layout:
        layout = self.layout_for(path, rank)
        if layout is None:
            raise LayoutError(
                f"no rule of the LayoutMap matches {path!r}, and the map has no mesh on which to replicate it: add a "
                f"rule, or make the map as LayoutMap(mesh){suggestion(path, self._layouts)}"
            )
        return layout

    def distribute(self, tree: Tree | None, root: int | None = None, *, strict: bool = False) -> Nested:
        """Return a tree of arrays with a DTensor for each array. With *root*, Collective over the map's mesh.

        A tree is a dict, list or tuple of arrays and trees, as `save` takes them; a list of numbers in it is an array,
        None stays, and a namedtuple becomes a tuple. The name of an array is its keys and indices joined by dots; it
        has the layout of the rule for this name, or is replicated on the map's mesh. Every rank passes the same tree,
        or device *root* passes it and the others pass None. ``LayoutError`` for keys that are no strings, and for
        missing or wrong layouts.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     mesh = mc.create_mesh([("x", 2)])
        ...     m = mc.LayoutMap(mesh)
        ...     m[".*kernel"] = mc.Layout(["x", mc.UNSHARDED], mesh)
        ...     tree = m.distribute({"d1": {"kernel": np.eye(2), "bias": np.zeros(2)}})
        ...     return tree["d1"]["kernel"].local.tolist(), tree["d1"]["bias"].local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [([[1.0, 0.0]], [0.0, 0.0]), ([[0.0, 1.0]], [0.0, 0.0])]
        """
        description = self._description_and_arrays(tree) if root is None else self._description_from(root, tree)
        layouts = [self._layout_of_variable(name, ndim) for name, ndim in description.ndims]
        say_unused(self, [name for name, _ in description.ndims], strict=strict, warns=self._is_first(layouts))
        arrays = description.arrays or [None] * len(layouts)
        tensors = [distribute(array, layout, root) for array, layout in zip(arrays, layouts, strict=True)]
        return rebuild(description.node, tensors.__getitem__)

    def _is_first(self, layouts: Sequence[Layout]) -> bool:
        mesh = self._mesh or (layouts[0].mesh if layouts else None)
        return mesh is None or mesh.rank in (0, None)

    def _description_and_arrays(self, tree: object) -> "_TreeDescription":
        """Return the description of *tree* for all ranks, and its arrays."""
        if children_of_array_tree(tree) is None:
            raise LayoutError(
                f"the tree is {quote(tree)}, a {type(tree).__name__}; it must be a dict, list or tuple of arrays"
            )
        description = _TreeDescription(None, [], [])

        def leaf(path: TreePath, array: object) -> Node:
            if array is None:
                return ["value", None]
            description.ndims.append((name_of(path), as_array(array).ndim))
            description.arrays.append(array)
            return ["array", len(description.arrays) - 1]

        return description._replace(node=node_of(tree, leaf, children_of_array_tree))

    def _description_from(self, root: int, tree: object) -> "_TreeDescription":
        """Return the tree of *root*, with the arrays only there. Collective over the map's mesh."""
        mesh = self._mesh
        if mesh is None:
            raise LayoutError("to distribute from a root, a LayoutMap must have a mesh: LayoutMap(mesh)")
        descriptions: list[_TreeDescription] = []

        def describe() -> tuple[object, list[tuple[str, int]]]:
            description = self._description_and_arrays(tree)
            for name, ndim in description.ndims:  # errors that only root can see
                layout = self._layout_of_variable(name, ndim)
                if layout.mesh != mesh:
                    raise LayoutError(
                        f"{name!r} has a layout on another mesh, {layout.mesh!r}, than that of the LayoutMap, "
                        f"{mesh!r}; a root is a device of one mesh"
                    )
            descriptions.append(description)
            return description.node, description.ndims

        call = f"LayoutMap.distribute from device {root} on {mesh_description(mesh)}"
        node_and_ndims = broadcast_from_device("LayoutMap.distribute", mesh, call, describe, root)
        if node_and_ndims is None:
            raise MeshError("ranks outside of the mesh do not learn the tree of root: call it on its ranks only")
        node, ndims = node_and_ndims
        return descriptions[0] if descriptions else _TreeDescription(node, ndims, [])

    def report(self, names: Iterable[str | tuple[str, AxesOrShape]] | Mapping[str, AxesOrShape]) -> LayoutReport:
        """Return the rule for each of the *names*, and possible mistakes.

        A name may come with a number of axes, a shape, an array or a variable, in pairs or in a dict, such as
        ``model.named_variables()``.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(["CPU:0"], [("x", 1)])
        >>> m = LayoutMap(mesh)
        >>> m.update({"d.*kernel": mc.Layout(["x"], mesh), "d1.kernel.*": mc.Layout(["x"], mesh)})
        >>> print(m.report({"d1.kernel": (4, 2), "head": (2,)}))
        LayoutMap: 2 rules, 2 names, 1 of them matched
        rules that match only names that earlier rules take:
          'd1.kernel.*' behind 'd.*kernel'
        names that no rule matches:
          'head'
        names with a rule for another number of axes:
          'd1.kernel' with 2 axes, rule 'd.*kernel' for 1 axis
        """
        ndims = dict(_name_and_ndim(name) for name in _name_list(names))
        matches = {name: tuple(self._matching_rules(name)) for name in ndims}
        return report_of(self._layouts, matches, ndims, first_counts=self._mode == "match")


def layout_map_scope(layout_map: LayoutMap) -> AbstractContextManager[None]:
    """Return ``layout_map.scope()``, a context in which variables get their layouts from *layout_map*.

    ``LayoutError`` if *layout_map* is no LayoutMap. Source: tf.keras.dtensor.experimental.layout_map_scope.

    >>> import meshcomm as mc
    >>> layouts = mc.LayoutMap(mc.create_mesh([("x", 1)]))
    >>> layouts["weight"] = mc.Layout(["x"], layouts.get_default_mesh())
    >>> with mc.layout_map_scope(layouts):
    ...     variable = mc.Variable(mc.ones(3, int, mc.Layout(["x"], layouts.get_default_mesh())))
    """
    if not isinstance(layout_map, LayoutMap):
        raise LayoutError(f"layout_map_scope takes a LayoutMap, not {quote(layout_map)}")
    return layout_map.scope()


def _is_key(key: object) -> TypeGuard[Key]:
    return isinstance(key, str) or (isinstance(getattr(key, "pattern", None), str) and hasattr(key, "fullmatch"))


def _pattern_text(key: object) -> str:
    """Return *key* as the text of a pattern."""
    if not _is_key(key):
        raise KeyTypeError(
            f"a key of a LayoutMap is a str, or a compiled pattern of one, not {quote(key)}, a {type(key).__name__}"
        )
    if isinstance(key, str):
        return str.__str__(key)
    if not isinstance(key, re.Pattern):
        return key.pattern
    try:
        flags_in_text = re.compile(key.pattern).flags
    except re.error:  # it is a pattern only with re.VERBOSE
        flags_in_text = 0
    letters = "".join(letter for flag, letter in _FLAGS.items() if key.flags & flag & ~flags_in_text)
    return f"(?{letters}){key.pattern}" if letters else key.pattern


def _compiled_rule(rule: str) -> re.Pattern[str]:
    try:
        return re.compile(rule)
    except (re.error, ValueError, OverflowError, RecursionError) as error:  # a ValueError for contradicting flags
        raise LayoutError(f"{quote(rule)} is not a regular expression: {error}") from None


def _checked_layout(rule: str, layout: object) -> Layout:
    if not isinstance(layout, Layout):
        raise LayoutError(
            f"{quote(layout)} should be a meshcomm.Layout type, got {type(layout)}, for the key {rule!r}"
        )
    refuse_match(layout)
    return layout


def _pairs(rules: Any) -> list[tuple[object, object]]:
    """Return the pairs of an argument of dict.update: a mapping, pairs, or anything with ``keys()``."""
    if isinstance(rules, Mapping):
        return list(rules.items())
    if hasattr(rules, "keys"):
        return [(key, rules[key]) for key in rules.keys()]  # noqa: SIM118 - it need not be iterable
    try:
        return [(key, layout) for key, layout in rules]
    except (TypeError, ValueError):
        raise LayoutError(f"rules must be a mapping, or pairs of a key and a layout, not {quote(rules)}") from None


def _name_list(names: Iterable[object] | Mapping[str, object]) -> list[object]:
    if isinstance(names, Mapping):
        return list(names.items())
    if isinstance(names, str):
        raise LayoutError(f"names must be an iterable or a dict, not the one str {quote(names)}")
    return list(names)


def _name_and_ndim(name: object) -> tuple[str, int | None]:
    """Return a name, and the number of its axes if it is given."""
    if not isinstance(name, tuple):
        return _pattern_text(name), None
    if len(name) != 2:
        raise LayoutError(
            f"{quote(name)} is neither a name nor a pair of a name and a number of axes, a shape or an array"
        )
    text, shape_or_ndim = name
    if isinstance(shape_or_ndim, int | np.integer):
        return _pattern_text(text), int(shape_or_ndim)
    shape = shape_or_ndim.shape if hasattr(shape_or_ndim, "shape") else shape_or_ndim
    return _pattern_text(text), len(tuple(shape))
