"""Scopes: variables that get their layouts by their paths in a tree of modules.

A variable made in a scope gets its value only when its path is known. The path leads to the variable from the
outermost module made in the scope: ``blocks.0.kernel``. There are three classes:

- `Scope` has the modules made in it, and the function that returns the layout for a path;
- `ScopedVariable` and `ScopedModule` are the objects that a module can hold. `Variable` and `Module` derive from them.
  `Scope` finds their paths in the tree, and each object decides what to do with its path.

Names that users' modules must not use begin with ``_layout_``.
"""

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Self, TypeAlias

from meshcomm.core.arrays.trees import items_of_container
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import LayoutError

LayoutOf: TypeAlias = Callable[[str, int], Layout]  # function of a path and a number of axes

_MAX_SEARCHED = 10_000
"""The most objects to search for the owner of a variable without a path, when a scope fails."""


class Scoped:
    """A part of a module: a variable, or another module."""

    __slots__ = ()
    _layout_scope: "Scope | None"
    """The scope it was made in."""

    def _layout_settle(self, path: str) -> None:
        """Take *path* as the final path, unless the object has one, and do the work that waited for it."""
        raise NotImplementedError


class ScopedVariable(Scoped):
    """A variable, which may wait for its path in a scope."""

    __slots__ = ("path",)
    shape: tuple[int, ...]
    path: str | None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make a variable, and register it in the current scope; copies are also made here."""
        variable = super().__new__(cls)
        if (scope := current_scope()) is not None:
            scope.contents.variables.append(weakref.ref(variable))
        return variable

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

    def _layout_settle(self, path: str) -> None:
        if self.path is None:
            if not self.initialized and self._layout_scope is not None:
                self._make(self._layout_scope.layout_of(path, len(self.shape)))
            self.path = path

    def _layout_resettle(self, path: str) -> None:
        """Take *path* instead of an earlier one; ``LayoutError`` if it gives the variable another layout."""
        if path == self.path or self._layout_scope is None:
            return
        layout = self._layout_scope.layout_of(path, len(self.shape))
        if layout != self.layout:
            raise LayoutError(
                f"{self!r} was used in the constructor of its module, as {self.path!r}, before its path {path!r} was "
                f"known, which gives it {layout.specs_text}: use it later, or give it layout="
            )
        self.path = path


class ScopedModule(Scoped):
    """A module, which holds variables and other modules."""

    _layout_path: str | None
    """The path from the outermost module, known when the scope has ended."""

    def parts(self) -> Mapping[str, object]:
        """Return the objects that the module holds, by name."""
        raise NotImplementedError

    def _layout_begin(self) -> None:
        """Register the module in the current scope."""
        scope = current_scope()
        self._layout_set("_layout_scope", scope)
        self._layout_set("_layout_path", None)
        if scope is not None:
            scope.contents.modules.append(self)

    def _layout_settle(self, path: str) -> None:
        if self._layout_path is None:
            self._layout_set("_layout_path", path)

    def _layout_set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # a subclass may have a __setattr__ of its own


@dataclass
class _ScopeContents:
    """The modules and variables of an outermost scope and of all scopes within it, until it ends.

    It keeps the modules alive: which module is the outermost must not depend on when Python frees memory, because that
    differs from rank to rank. A variable may be dropped before it has a value.
    """

    modules: list[ScopedModule] = field(default_factory=list)
    variables: "list[weakref.ref[ScopedVariable]]" = field(default_factory=list)

    def forget(self, modules: int = 0, variables: int = 0) -> None:
        """Forget everything but the first *modules* modules and the first *variables* variables."""
        del self.modules[modules:], self.variables[variables:]

    def check(self) -> None:
        """Raise ``LayoutError`` if a variable that the program can reach has no value."""
        if self._uninitialized_variables():
            gc.collect()  # the remaining variables are the same on all ranks
        if uninitialized := self._uninitialized_variables():
            locations = _locations(self.modules, uninitialized)
            texts = [f"{variable!r}{locations.get(id(variable), '')}" for variable in uninitialized[:8]]
            more_text = f" and {len(uninitialized) - len(texts)} more" if len(uninitialized) > len(texts) else ""
            raise LayoutError(
                f"the scope ends, but no Module made in it holds {'; '.join(texts)}{more_text}: without a path a "
                "variable gets no value. Hold it in an attribute of a Module, or in a list, tuple, deque or dict "
                "there; or give it layout="
            )

    def _uninitialized_variables(self) -> list[ScopedVariable]:
        """Return the living variables that wait for a value in their scope."""
        variables = [variable for reference in self.variables if (variable := reference()) is not None]
        return [
            variable
            for variable in variables
            if getattr(variable, "_layout_scope", None) is not None and not variable.initialized
        ]


def _locations(modules: list[ScopedModule], variables: list[ScopedVariable]) -> dict[int, str]:
    """Return, by the id of a variable, a text with the attribute of a module that refers to it without a path."""
    variable_ids, texts, seen_ids = set(map(id, variables)), dict[int, str](), set(map(id, modules))
    queue = deque[tuple[object, str]]()
    for module in modules:
        prefix = f"{module._layout_path}." if module._layout_path else ""
        queue.extend((part, f" (in {prefix}{name}, a {type(part).__name__})") for name, part in module.parts().items())
    while queue and len(seen_ids) < _MAX_SEARCHED:
        item, location = queue.popleft()
        if id(item) in variable_ids:
            texts.setdefault(id(item), location)
        elif id(item) not in seen_ids and not isinstance(item, type | ModuleType | FunctionType):
            seen_ids.add(id(item))
            queue.extend((child, location) for child in gc.get_referents(item))
    return texts


class Scope:
    """The layouts of variables made in one scope.

    Parameters
    ----------
    layout_of: function from a path and a number of axes to a layout
    contents: modules and variables made in this scope, and in the scopes around it and within it
    """

    def __init__(self, layout_of: LayoutOf, contents: _ScopeContents) -> None:
        self.layout_of = layout_of
        self.contents = contents
        self._settled_early: list[ScopedVariable] = []

    def __deepcopy__(self, memo: object) -> "Scope":
        return self  # a copy of a module, or of a variable that waits, is in the same scope

    def settle_early(self, variable: ScopedVariable) -> None:
        """Give *variable* its path and value before the scope ends, if a module holds it.

        The variables of this scope in the same tree get theirs too.
        """
        for root in _roots(self.contents.modules):
            variables = [
                (path, part)
                for path, part in _parts_with_paths(root)
                if isinstance(part, ScopedVariable) and part._layout_scope is self
            ]
            if any(part is variable for _, part in variables):
                self._settled_early += [part for _, part in variables if not part.initialized]
                for path, part in variables:
                    part._layout_settle(path)
                return

    def finish(self, outer_scopes: "tuple[Scope, ...]") -> None:
        """Give all variables their paths and values, except those of *outer_scopes*, which have not ended."""
        early_ids = set(map(id, self._settled_early))
        for root in _roots(self.contents.modules):
            for path, part in _parts_with_paths(root):
                if part._layout_scope is not None and part._layout_scope not in outer_scopes:
                    part._layout_settle(path)
                if isinstance(part, ScopedVariable) and id(part) in early_ids:
                    part._layout_resettle(path)


def _parts_with_paths(root: ScopedModule) -> list[tuple[str, Scoped]]:
    """Return *root* and all objects that it holds, each once, with their paths from the outermost module."""
    root_path = root._layout_path or ""
    return [(root_path, root), *walk(root, root_path, set())]


def _roots(modules: list[ScopedModule]) -> list[ScopedModule]:
    """Return the modules that no other module holds, in the order in which they were made.

    If modules hold each other in a circle, return the first of them.
    """
    held_ids = {id(part) for module in modules for _, part in parts_of(module) if part is not module}
    roots: list[ScopedModule] = []
    seen_ids: set[int] = set()
    for module in sorted(modules, key=lambda module: id(module) in held_ids):
        if id(module) not in seen_ids:
            roots.append(module)
            seen_ids.update(id(part) for _, part in walk(module, "", seen_ids))
    return roots


class _ScopeStack(threading.local):
    """The scopes that a thread is in, the innermost last. A simulated rank is a thread."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []


_stack = _ScopeStack()


def current_scope() -> Scope | None:
    """Return the innermost scope of this thread, if any."""
    return _stack.scopes[-1] if _stack.scopes else None


@contextmanager
def scope(layout_of: LayoutOf) -> Iterator[None]:
    """Return a context in which variables wait for their paths; *layout_of* then gives their layouts."""
    outer = current_scope()
    with enter_scope(Scope(layout_of, _ScopeContents() if outer is None else outer.contents)):
        yield


@contextmanager
def enter_scope(scope: Scope, *modules: ScopedModule) -> Iterator[None]:
    """Make *scope* the innermost one. Finish it at the end, unless it is also an outer one, or after an exception."""
    scopes, contents = _stack.scopes, scope.contents
    outer_scopes, old_lengths = tuple(scopes), (len(contents.modules), len(contents.variables))
    is_outermost = all(other.contents is not contents for other in outer_scopes)
    scopes.append(scope)
    contents.modules.extend(modules)
    try:
        yield
        if scope not in outer_scopes:
            scope.finish(outer_scopes)
        if is_outermost:
            contents.check()
    except BaseException:
        contents.forget(*old_lengths)  # an outer scope must not finish what this one has dropped
        raise
    finally:
        scopes.pop()
        if is_outermost:
            contents.forget()


def walk(module: ScopedModule, start: str, seen_ids: set[int]) -> Iterator[tuple[str, Scoped]]:
    """Yield all parts of *module*, also in other modules, each once with the first path to it.

    Parameters
    ----------
    start: the path of *module*
    seen_ids: ids of parts to leave out; ids of new parts are added
    """
    seen_ids.add(id(module))
    for name, part in parts_of(module):
        if id(part) not in seen_ids:
            seen_ids.add(id(part))
            path = f"{start}.{name}" if start else name
            yield path, part
            if isinstance(part, ScopedModule):
                yield from walk(part, path, seen_ids)


def parts_of(module: ScopedModule) -> Iterator[tuple[str, Scoped]]:
    """Yield the variables and modules that *module* holds itself, with their names."""
    parts = module.parts()
    for name in sorted(parts):  # as tf_keras does: _a before a
        yield from _scoped_in(name, parts[name], ())


def _scoped_in(name: str, value: object, outer_ids: tuple[int, ...]) -> Iterator[tuple[str, Scoped]]:
    if isinstance(value, Scoped):
        yield name, value
    elif (content := items_of_container(list(value) if isinstance(value, deque) else value)) and id(
        value
    ) not in outer_ids:
        for key, child in _entries(name, *content):
            yield from _scoped_in(f"{name}.{key}", child, (*outer_ids, id(value)))


def _entries(name: str, kind: str, content: Iterable[tuple[object, object]]) -> list[tuple[str, object]]:
    """Return the entries of the container called *name*, with their names."""
    entries = [(str(key), child) for key, child in content]
    if kind == "dict":
        entries.sort(key=lambda entry: entry[0])
    for (key, _), (next_key, _) in pairwise(entries):
        if key == next_key:
            raise LayoutError(f"two keys of the dict {name!r} are named {key!r}; the paths of variables must differ")
    return entries
