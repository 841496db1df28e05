"""Modules: trees of variables."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from meshcomm.training.scopes import Tree, current_scope, entered, walk
from meshcomm.training.variables import Variable


class Module(Tree):
    """A base for what holds variables: as attributes, in lists, tuples and dicts, or in other modules. Local.

    The name of a variable is its path: attributes, indices and keys joined by dots. Nothing else is needed, also no
    ``super().__init__()``. A subclass whose parts have better names than its attributes overrides `parts`; one that
    makes variables later than itself, as at its first call, makes them ``with self.building():``.

    >>> import meshcomm as mc
    >>> class Dense(Module):
    ...     def __init__(self, n, layout):
    ...         self.kernel = mc.Variable(0.0, (n, n), layout=layout)
    >>> class Net(Module):
    ...     def __init__(self, layout):
    ...         self.blocks = [Dense(2, layout), Dense(2, layout)]
    >>> with mc.simulate(1) as world:
    ...     net = world.run(lambda: Net(mc.Layout.replicated(mc.create_mesh([("x", 1)]), 2)))[0]
    >>> [path for path, _ in net.named_variables()]
    ['blocks.0.kernel', 'blocks.1.kernel']
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remember the scope around. Local."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        module = super().__new__(cls)
        object.__setattr__(module, "_layout_scope", current_scope())
        object.__setattr__(module, "_layout_path", None)
        if module._layout_scope is not None:
            module._layout_scope.modules.append(module)
        return module

    def parts(self) -> Mapping[str, object]:
        """Return what the module holds, by name: its attributes, unless a subclass names them otherwise. Local."""
        return {name: part for name, part in vars(self).items() if not name.startswith("_layout_")}

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which the module makes variables after its own construction. Local.

        They belong to the scope that the module was made in: its map gives their layouts, by their paths from the
        outermost module of that scope.
        """
        scope = self._layout_scope
        return nullcontext() if scope is None else entered(scope, self)

    def named_variables(self) -> "list[tuple[str, Variable]]":
        """Return the variables with their paths from this module, each variable once. Local.

        In the order of names, attributes with a leading underscore last, and of list indices; a variable that several
        paths lead to has the first of them.
        """
        return [(path, leaf) for path, leaf in walk(self, "", set()) if isinstance(leaf, Variable)]

    def variables(self) -> list[Variable]:
        """Return the variables, in the order of `named_variables`. Local."""
        return [variable for _, variable in self.named_variables()]

    def trainable_variables(self) -> list[Variable]:
        """Return the variables that are trainable. Local."""
        return [variable for variable in self.variables() if variable.trainable]
