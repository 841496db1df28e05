"""Scopes: variables that wait for their layout."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout

LayoutOf: TypeAlias = Callable[[str, int], Layout]  # of a path and a rank


class Leaf:
    """What a module holds: a variable, or another module."""

    __slots__ = ()
    _layout_scope: "Scope | None"
    """The scope in which it was made."""


class Waiting(Leaf):
    """A variable, which waits for its path in a scope."""

    __slots__ = ()
    shape: tuple[int, ...]
    path: str | None

    @property
    def initialized(self) -> bool:
        """Whether the variable has its value."""
        raise NotImplementedError

    @property
    def layout(self) -> Layout:
        """The layout of the value."""
        raise NotImplementedError

    def _make(self, layout: Layout) -> None:
        """Make the value in *layout*."""
        raise NotImplementedError


class Tree(Leaf):
    """A module, which holds variables and other modules."""

    _layout_path: str | None
    """The path from the outermost module, once the scope has ended."""

    def parts(self) -> Mapping[str, object]:
        """Return what the module holds, by name."""
        raise NotImplementedError


class Scope:
    """How the variables made in one scope get their layouts.

    *modules* are those made in it, in the scopes around it and inside of it, until the outermost one ends: which
    module is the outermost must not depend on when Python frees memory, for that differs from rank to rank.
    """

    def __init__(self, layout_of: LayoutOf, modules: list[Tree]) -> None:
        self.layout_of = layout_of
        self.modules = modules
        self._found: list[Waiting] = []  # whose values were asked for before the scope ended

    def __deepcopy__(self, memo: object) -> "Scope":
        return self  # a copy of a module, or of a variable that waits, is in the same scope

    def find(self, variable: Waiting) -> None:
        """Give *variable*, and those of its scope in the same tree, their paths and values, if a module holds it."""
        for root in _roots(self.modules):
            variables = _variables(root)
            if any(other is variable for _, other in variables):
                self._found += [other for _, other in variables if not other.initialized]
                _settle(root, lambda leaf: isinstance(leaf, Waiting) and leaf._layout_scope is self)
                return

    def finish(self, around: "tuple[Scope, ...]") -> None:
        """Give all variables of scopes that have ended, as those *around* have not, their paths and values."""
        for root in _roots(self.modules):
            _settle(root, lambda leaf: leaf._layout_scope not in around)
            for path, variable in _variables(root):
                if any(other is variable for other in self._found):
                    self._check_found(variable, path)

    def _check_found(self, variable: Waiting, path: str) -> None:
        """Give a variable that was used early its final path, which must not give it another layout."""
        if variable.path == path:
            return
        wanted = self.layout_of(path, len(variable.shape))
        if wanted != variable.layout:
            raise LayoutError(
                f"{variable!r} was used in the constructor of its module, as {variable.path!r}, before its path "
                f"{path!r} was known, which gives it {wanted.sharding_specs}: use it later, or give it layout="
            )
        variable.path = path


def _variables(root: Tree) -> list[tuple[str, Waiting]]:
    """Return the variables of a tree with their paths, each once."""
    return [(path, leaf) for path, leaf in walk(root, "", set()) if isinstance(leaf, Waiting)]


def _settle(root: Tree, chosen: Callable[[Leaf], bool]) -> None:
    """Tell the *chosen* variables and modules of a tree their paths, and make the values that wait for theirs."""
    start = root._layout_path or ""
    for path, leaf in [(start, root), *walk(root, start, set())]:
        scope = leaf._layout_scope
        if scope is None or not chosen(leaf):
            continue
        if isinstance(leaf, Tree):
            if leaf._layout_path is None:
                object.__setattr__(leaf, "_layout_path", path)
        elif isinstance(leaf, Waiting) and leaf.path is None:
            if not leaf.initialized:
                leaf._make(scope.layout_of(path, len(leaf.shape)))
            leaf.path = path


def _roots(modules: list[Tree]) -> list[Tree]:
    """Return the modules that no other one holds, in the order in which they were made; the first one of a cycle."""
    held = {id(leaf) for module in modules for _, leaf in held_by(module) if leaf is not module}
    roots: list[Tree] = []
    seen: set[int] = set()
    for module in sorted(modules, key=lambda module: id(module) in held):
        if id(module) not in seen:
            roots.append(module)
            for _ in walk(module, "", seen):
                pass
    return roots


_local = threading.local()


def _active() -> list[Scope]:
    """Return the scopes around, the innermost last; those of this thread, as a simulated rank is one."""
    scopes: list[Scope] | None = getattr(_local, "scopes", None)
    if scopes is None:
        scopes = _local.scopes = []
    return scopes


def current_scope() -> Scope | None:
    """Return the innermost scope around, if any. Local."""
    scopes = _active()
    return scopes[-1] if scopes else None


@contextmanager
def lazy_variables(layout_of: LayoutOf) -> Iterator[None]:
    """Return a scope in which variables wait for their paths, of which *layout_of* gives the layouts. Local."""
    outer = current_scope()
    with entered(Scope(layout_of, [] if outer is None else outer.modules)):
        yield


@contextmanager
def entered(scope: Scope, *modules: Tree) -> Iterator[None]:
    """Make *scope* the innermost one, and finish it at the end, unless it was around already or on an exception."""
    active = _active()
    around, made_before = tuple(active), len(scope.modules)
    active.append(scope)
    scope.modules.extend(modules)
    try:
        yield
        if scope not in around:
            scope.finish(around)
    except BaseException:
        del scope.modules[made_before:]  # a scope around must not finish what was given up
        raise
    finally:
        active.pop()
        if all(other.modules is not scope.modules for other in around):
            scope.modules.clear()


def walk(module: Tree, start: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    """Yield what *module*, whose path is *start*, holds itself and in other modules, with the first path to each."""
    seen.add(id(module))
    for name, leaf in held_by(module):
        if id(leaf) not in seen:
            seen.add(id(leaf))
            path = f"{start}.{name}" if start else name
            yield path, leaf
            if isinstance(leaf, Tree):
                yield from walk(leaf, path, seen)


def held_by(module: Tree) -> Iterator[tuple[str, Leaf]]:
    """Yield the variables and modules that *module* holds itself, with their names."""
    parts = module.parts()
    for name in sorted(parts, key=lambda name: (name.startswith("_"), name)):
        yield from _leaves(name, parts[name], ())


def _leaves(name: str, part: object, around: tuple[int, ...]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(part, Leaf):
        yield name, part
    elif isinstance(part, Mapping | list | tuple) and id(part) not in around:
        for key, child in _entries(name, part):
            yield from _leaves(f"{name}.{key}", child, (*around, id(part)))


def _entries(name: str, part: Mapping[Any, Any] | list[Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return the entries of a container with their names."""
    if not isinstance(part, Mapping):
        return [(str(i), child) for i, child in enumerate(part)]
    entries = sorted(((str(key), child) for key, child in part.items()), key=lambda entry: entry[0])
    for (key, _), (other, _) in pairwise(entries):
        if key == other:
            raise LayoutError(f"two keys of the dict {name!r} are named {key!r}; the paths of variables must differ")
    return entries
