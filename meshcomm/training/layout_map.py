"""LayoutMap: layouts by name, with names and regular expressions as rules, for the variables of a model."""

import pickle
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import as_array, quote
from meshcomm.arrays.create import distribute
from meshcomm.errors import LayoutError, MeshcommError, MeshError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.training.patterns import Mode, Pattern
from meshcomm.training.scopes import lazy_variables

Key = str | re.Pattern[str]


Ranked = int | Iterable[int] | Any  # a rank, a shape, or what has a shape


Tree = Mapping[str, Any]  # of arrays and trees


Path = tuple[str, ...]


_MODES: tuple[Mode, ...] = get_args(Mode)


_FLAGS = {re.ASCII: "a", re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


_NOTHING: Any = object()


class _KeyTypeError(LayoutError, TypeError):
    """A key of another type than str: a LayoutError, and the TypeError that the seed raises."""


class LayoutMap(MutableMapping[str, Layout]):
    """Layouts by name, in which a key is a name and a regular expression. Local.

    ``m[name]`` is the layout stored under just this key; else that of the first key, in the order of insertion, that
    matches *name* as ``re.match`` does, from its start but not to its end; else None. Everything else (``in``, ``get``
    with a default, ``pop``, ``setdefault``, ``==``, …) does what a dict does, with exact keys; but a key cannot be
    stored twice.

    *mesh* is where variables that no rule matches are replicated. With *mode* ``"search"`` or ``"fullmatch"`` keys
    match as in versions of Keras 3, and several matches are an error. A key may be a compiled pattern; it is stored as
    its text. Patterns are matched in linear time: those with lookaround, backreferences, atomic groups and possessive
    repeats are refused. ``LayoutError`` for what is no key, no pattern and no layout. Source:
    tf.keras.dtensor.experimental.LayoutMap.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(["CPU:0", "CPU:1"], [("x", 2)])
    >>> m = LayoutMap(mesh)
    >>> m[".*dense.*kernel"] = mc.Layout([mc.UNSHARDED, "x"], mesh)
    >>> m[".*dense.*bias"] = mc.Layout(["x"], mesh)
    >>> m["dense_1.kernel"].sharding_specs, m["conv.kernel"], "dense_1.kernel" in m
    (['unsharded', 'x'], None, False)
    """

    def __init__(self, mesh: Mesh | None = None, mode: Mode = "match") -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise MeshError(f"the mesh of a LayoutMap is a Mesh or None, not {quote(mesh)}")
        if mode not in _MODES:
            raise LayoutError(f"mode {quote(mode)}; it is one of {', '.join(_MODES)}")
        self._mesh = mesh
        self._mode = mode
        self._layouts: dict[str, Layout] = {}
        self._patterns: dict[str, Pattern] = {}

    @property
    def mode(self) -> Mode:
        """How keys match names: "match", "search" or "fullmatch". Local."""
        return self._mode

    def get_default_mesh(self) -> Mesh | None:
        """Return the mesh on which variables that no rule matches are replicated, if any. Local."""
        return self._mesh

    # -- lookup -------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Layout | None:  # type: ignore[override]
        """Return the layout of the rule that applies to the name *key*, or None. Local."""
        rule = self._rule(_text(key))
        return None if rule is None else self._layouts[rule]

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the layout of the rule that applies to the name *key*, or *default*. Local."""
        layout = self[key]
        return default if layout is None else layout

    def layout_for(self, name: str, rank: int | None = None) -> Layout | None:
        """Return the layout for an array called *name* with *rank* axes. Local.

        That of the rule that applies, or the replicated one if none does, the map has a mesh and *rank* is given; else
        None. ``LayoutError`` if the rule is for arrays of another rank.

        >>> import meshcomm as mc
        >>> m = LayoutMap(mc.Mesh(["CPU:0"], [("x", 1)]))
        >>> m.layout_for("head.bias", 1).sharding_specs
        ['unsharded']
        """
        rule = self._rule(_text(name))
        if rule is None:
            return None if self._mesh is None or rank is None else Layout.replicated(self._mesh, rank)
        layout = self._layouts[rule]
        if rank not in (None, layout.rank):
            raise LayoutError(
                f"{name!r} has rank {rank}, but the rule {rule!r} that applies to it has a layout of rank "
                f"{layout.rank}, {layout.sharding_specs}"
            )
        return layout

    def _rule(self, name: str) -> str | None:
        """Return the rule that applies to *name*; ``LayoutError`` if several do and none may come first."""
        rules = self._matching(name)
        rule = next(rules, None)
        if self._mode != "match" and rule is not None and rule != name:
            several = [rule, *rules]
            if len(several) > 1:
                raise LayoutError(
                    f"Path {name!r} matches multiple layout specification keys: {several}. In mode {self._mode!r} "
                    "each path may match one key at most, unless it is a key itself."
                )
        return rule

    def _matching(self, name: str) -> Iterator[str]:
        """Yield the rules that match *name*, the one that comes first first."""
        if name in self._layouts:
            yield name
        for rule, pattern in self._patterns.items():
            if rule != name and pattern.matches(name, self._mode):
                yield rule

    # -- the dict -----------------------------------------------------------------------------------------------------

    def __setitem__(self, key: Key, layout: Layout) -> None:
        """Add a rule; ``LayoutError`` if there is one of this key, or *key* or *layout* are none. Local."""
        self.update([(key, layout)])

    def update(self, other: Any = (), /, **kwds: Layout) -> None:
        """Add the rules of a mapping or of pairs, and those given by keyword: all, or on an error none. Local.

        Source: dict.update.
        """
        added: dict[str, Layout] = {}
        patterns: dict[str, Pattern] = {}
        for key, layout in [*_pairs(other), *kwds.items()]:
            rule = _text(key)
            _check_layout(rule, layout)
            stored = added.get(rule, self._layouts.get(rule))
            if stored is not None:
                raise LayoutError(
                    f"{rule} already exist in the LayoutMap with value {quote(stored)}. Please make sure to not use "
                    "duplicated keys."
                )
            added[rule], patterns[rule] = layout, Pattern(rule)
        self._layouts |= added
        self._patterns |= patterns

    def __delitem__(self, key: Key) -> None:
        """Remove the rule of exactly this key; ``KeyError`` if there is none. Local."""
        self.pop(key)

    def pop(self, key: Key, default: Any = _NOTHING) -> Any:
        """Remove the rule of exactly this key and return its layout, or *default*; ``KeyError`` without one. Local."""
        if key not in self:
            if default is _NOTHING:
                raise KeyError(key)
            return default
        rule = _text(key)
        del self._patterns[rule]
        return self._layouts.pop(rule)

    def popitem(self) -> tuple[str, Layout]:
        """Remove the first rule and return it as a pair; ``KeyError`` if there is none. Local."""
        for rule, layout in self._layouts.items():
            del self[rule]
            return rule, layout
        raise KeyError("popitem(): the LayoutMap is empty")

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """Return the layout stored under exactly this key, after storing *default* if there was none. Local."""
        if key not in self:
            self[key] = default
        return self._layouts[_text(key)]

    def clear(self) -> None:
        """Remove all rules. Local."""
        self._layouts.clear()
        self._patterns.clear()

    def copy(self) -> "LayoutMap":
        """Return a map with the same mesh, mode and rules. Local."""
        copied = LayoutMap(self._mesh, self._mode)
        copied._layouts, copied._patterns = self._layouts.copy(), self._patterns.copy()
        return copied

    def keys(self) -> KeysView[str]:
        """Return a view on the keys, in the order of insertion. Local."""
        return self._layouts.keys()

    def values(self) -> ValuesView[Layout]:
        """Return a view on the layouts, in the order of insertion. Local."""
        return self._layouts.values()

    def items(self) -> ItemsView[str, Layout]:
        """Return a view on the keys and layouts, in the order of insertion. Local."""
        return self._layouts.items()

    def __contains__(self, key: object) -> bool:
        """Return whether there is a rule of exactly this key. Local."""
        return _is_key(key) and _text(key) in self._layouts

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __eq__(self, other: object) -> bool:
        """Compare the rules, as dicts do, not the mesh, the mode or the order. Local."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self._layouts == dict(other.items())

    def __repr__(self) -> str:
        rules = {rule: layout.sharding_specs for rule, layout in self._layouts.items()}
        return f"LayoutMap({self._mesh!r}, {self._mode!r}: {rules})"

    # -- use ----------------------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which the variables of modules get their layouts from this map. Local.

        A variable made in it waits for its path in the tree of `Module` objects made in it: ``d1.kernel``,
        ``blocks.0.kernel``. When the scope ends each rank makes its own blocks, in the layouts of the rules that
        apply, or replicated on the map's mesh where none does. The innermost scope counts, and only for the thread it
        is in; changes of the map later change nothing. ``LayoutError`` at the end of the scope if a rule is for
        another rank, or none applies and the map has no mesh. Source: tf.keras.dtensor.experimental.layout_map_scope.

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
        return lazy_variables(self._layout_of_variable)

    def _layout_of_variable(self, path: str, rank: int) -> Layout:
        layout = self.layout_for(path, rank)
        if layout is None:
            raise LayoutError(
                f"no rule of the LayoutMap matches {path!r}, and it has no mesh on which that could be replicated: "
                "add a rule, or make it as LayoutMap(mesh)"
            )
        return layout

    def distribute(self, tree: Tree | None, root: int | None = None) -> dict[str, Any]:
        """Return a nested dict of arrays as one of DTensors. Local; with *root*, Collective over the map's mesh.

        The name of an array, by which its layout is found, is its keys joined by dots. Where no rule applies it is
        replicated on the map's mesh. Every rank passes the same tree, or only device *root* has it and the others pass
        None. ``LayoutError`` for keys that are no strings, lists in the tree, and layouts that are missing or do not
        fit.

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
        ranks = _each(tree, lambda _, array: as_array(array).ndim) if root is None else self._ranks_from(tree, root)
        layouts = _each(ranks, lambda path, rank: self._layout_of_variable(".".join(path), rank))
        has_tree = root is None or (self._mesh is not None and self._mesh.rank == root)
        return _each(layouts, lambda path, layout: distribute(_at(tree, path) if has_tree else None, layout, root))

    def _ranks_from(self, tree: Tree | None, root: int) -> dict[str, Any]:
        """Return the tree of *root* with the rank of each array in its place. Collective over the map's mesh."""
        if self._mesh is None:
            raise LayoutError("distributing from a root takes a LayoutMap with a mesh: LayoutMap(mesh)")
        message = None
        if self._mesh.rank == root:
            message = np.frombuffer(pickle.dumps(_outcome(lambda: _each(tree, self._checked_rank))), np.uint8)
        received = distribute(message, Layout.replicated(self._mesh, 1), root).local
        assert received is not None
        ranks: dict[str, Any] | MeshcommError = pickle.loads(received.tobytes())
        if isinstance(ranks, MeshcommError):
            raise ranks
        return ranks

    def _checked_rank(self, path: Path, array: ArrayLike) -> int:
        """Return the rank of an array on root; all that only root can see is checked here."""
        rank = as_array(array).ndim
        layout = self._layout_of_variable(".".join(path), rank)
        if layout.mesh != self._mesh:
            raise LayoutError(
                f"{'.'.join(path)!r} is laid out on another mesh, {layout.mesh!r}, than that of the LayoutMap, "
                f"{self._mesh!r}; a root is a device of one mesh"
            )
        return rank

    def report(self, names: "Iterable[str | tuple[str, Ranked]] | Mapping[str, Ranked]") -> "LayoutReport":
        """Return which rules apply to *names*, and what looks like a mistake. Local.

        *names* are names, or names with a rank, a shape, an array or a variable each, as pairs or in a dict; as
        ``model.named_variables()`` has them.

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
        names with a rule for another rank:
          'd1.kernel' of rank 2, rule 'd.*kernel' of rank 1
        """
        ranks = dict(_ranked(name) for name in _listed_names(names))
        matches = {name: tuple(self._matching(name)) for name in ranks}
        ambiguous = {} if self._mode == "match" else {n: r for n, r in matches.items() if len(r) > 1 and r[0] != n}
        applied = {name: rules[0] for name, rules in matches.items() if rules and name not in ambiguous}
        matched = {rule for rules in matches.values() for rule in rules}
        passed_over = matched.difference(applied.values(), *ambiguous.values())
        return LayoutReport(
            rules=tuple(self._layouts),
            applied=applied,
            unused=tuple(rule for rule in self._layouts if rule not in matched),
            shadowed={rule: _first_rules(matches, rule) for rule in self._layouts if rule in passed_over},
            unmatched=tuple(name for name, rules in matches.items() if not rules),
            ambiguous=ambiguous,
            wrong_ranks=tuple(
                WrongRank(name, rank, rule, self._layouts[rule].rank)
                for name, rule in applied.items()
                if (rank := ranks[name]) not in (None, self._layouts[rule].rank)
            ),
        )


class WrongRank(NamedTuple):
    """A name whose rule has a layout of another rank. Local."""

    name: str
    rank: int
    rule: str
    rank_of_rule: int

    def __str__(self) -> str:
        return f"{self.name!r} of rank {self.rank}, rule {self.rule!r} of rank {self.rank_of_rule}"


@dataclass(frozen=True)
class LayoutReport:
    """Which rules of a LayoutMap apply to names, and what looks like a mistake; its text is for people. Local.

    `applied` has the rule of each name that one applies to, `unused` the rules that match no name, `shadowed` those
    that only match names which earlier rules take, with these, `unmatched` the names that no rule matches, `ambiguous`
    the names that several rules match where that is an error, and `wrong_ranks` the names whose rule is for another
    rank.
    """

    rules: tuple[str, ...]
    applied: dict[str, str]
    unused: tuple[str, ...]
    shadowed: dict[str, tuple[str, ...]]
    unmatched: tuple[str, ...]
    ambiguous: dict[str, tuple[str, ...]]
    wrong_ranks: tuple[WrongRank, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every rule is used and every name has one rule, of its rank. Local."""
        return not any((self.unused, self.shadowed, self.unmatched, self.ambiguous, self.wrong_ranks))

    def __str__(self) -> str:
        n_names = len(self.applied) + len(self.unmatched) + len(self.ambiguous)
        sections = {
            "rules that match no name:": map(repr, self.unused),
            "rules that match only names that earlier rules take:": (
                f"{rule!r} behind {', '.join(map(repr, earlier))}" for rule, earlier in self.shadowed.items()
            ),
            "names that no rule matches:": map(repr, self.unmatched),
            "names that several rules match:": (
                f"{name!r} by {', '.join(map(repr, rules))}" for name, rules in self.ambiguous.items()
            ),
            "names with a rule for another rank:": map(str, self.wrong_ranks),
        }
        lines = [
            f"LayoutMap: {len(self.rules)} rules, {n_names} names, {n_names - len(self.unmatched)} of them matched"
        ]
        for title, entries in sections.items():
            indented = [f"  {entry}" for entry in entries]
            lines += [title, *indented] if indented else []
        return "\n".join(lines)


def layout_map_scope(layout_map: LayoutMap) -> AbstractContextManager[None]:
    """Return ``layout_map.scope()``, a context in which variables get their layouts from *layout_map*. Local.

    ``LayoutError`` if *layout_map* is none. Source: tf.keras.dtensor.experimental.layout_map_scope.
    """
    if not isinstance(layout_map, LayoutMap):
        raise LayoutError(f"layout_map_scope takes a LayoutMap, not {quote(layout_map)}")
    return layout_map.scope()


def _is_key(key: object) -> bool:
    return isinstance(key.pattern if isinstance(key, re.Pattern) else key, str)


def _text(key: Any) -> str:
    """Return *key* as the text of a pattern."""
    if not _is_key(key):
        raise _KeyTypeError(
            f"a key of a LayoutMap is a str, or a compiled pattern of one, not {quote(key)}, a {type(key).__name__}"
        )
    if not isinstance(key, re.Pattern):
        return str.__str__(key)
    in_text = re.compile(key.pattern).flags
    letters = "".join(letter for flag, letter in _FLAGS.items() if key.flags & flag & ~in_text)
    return f"(?{letters}){key.pattern}" if letters else key.pattern


def _check_layout(rule: str, layout: object) -> None:
    if not isinstance(layout, Layout):
        raise LayoutError(
            f"{quote(layout)} should be a meshcomm.Layout type, got {type(layout)}, for the key {rule!r}"
        )
    layout.refuse_match()


def _pairs(rules: Any) -> list[tuple[Any, Any]]:
    """Return what dict.update takes, a mapping or pairs, as pairs."""
    if isinstance(rules, Mapping):
        return list(rules.items())
    if hasattr(rules, "keys"):
        return [(key, rules[key]) for key in rules.keys()]  # noqa: SIM118, since it need not be iterable
    try:
        return [(key, layout) for key, layout in rules]
    except (TypeError, ValueError):
        raise LayoutError(f"rules are a mapping, or pairs of a key and a layout, not {quote(rules)}") from None


def _listed_names(names: Any) -> list[Any]:
    if isinstance(names, Mapping):
        return list(names.items())
    if isinstance(names, str):
        raise LayoutError(f"names are an iterable or a dict, not the one str {quote(names)}")
    return list(names)


def _ranked(name: Any) -> tuple[str, int | None]:
    """Return a name, and the rank of what it names if that is given."""
    if not isinstance(name, tuple):
        return _text(name), None
    if len(name) != 2:
        raise LayoutError(f"{quote(name)} is neither a name nor a pair of a name and a rank, a shape or an array")
    of_name, described = name
    if isinstance(described, int | np.integer):
        return _text(of_name), int(described)
    shape: Any = getattr(described, "shape", described)
    return _text(of_name), len(tuple(shape))


def _first_rules(matches: Mapping[str, tuple[str, ...]], rule: str) -> tuple[str, ...]:
    """Return the rules that take the names which *rule* matches, each once."""
    return tuple(dict.fromkeys(rules[0] for rules in matches.values() if rule in rules))


def _each(tree: Any, function: Callable[[Path, Any], Any], path: Path = ()) -> dict[str, Any]:
    """Return a nested dict with ``function(path, leaf)`` in place of each leaf."""
    if not isinstance(tree, Mapping):
        raise LayoutError(f"the tree is {quote(tree)}, a {type(tree).__name__}; it must be a dict of arrays and dicts")
    return {_checked_key(key, path): _branch(child, function, (*path, key)) for key, child in tree.items()}


def _branch(child: Any, function: Callable[[Path, Any], Any], path: Path) -> Any:
    if isinstance(child, list | tuple):
        raise LayoutError(f"{'.'.join(path)!r} is a {type(child).__name__}; a tree has arrays, and dicts of them")
    return _each(child, function, path) if isinstance(child, Mapping) else function(path, child)


def _checked_key(key: object, path: Path) -> str:
    if not isinstance(key, str):
        raise _KeyTypeError(
            f"key {quote(key)} below {'.'.join(path)!r} is a {type(key).__name__}; names are made of str"
        )
    return key


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _outcome(function: Callable[[], Any]) -> Any:
    """Return what *function* returns, or our own error that it raises."""
    try:
        return function()
    except MeshcommError as error:
        return error
