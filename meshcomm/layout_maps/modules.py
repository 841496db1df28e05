"""Modules: trees of variables, each with a path."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from meshcomm.layout_maps.scopes import ScopedModule, enter_scope, walk
from meshcomm.layout_maps.variables import Variable


class Module(ScopedModule):
    """A base class of objects with variables: as attributes, in lists, tuples, deques and dicts, or in other modules.

    The name of a variable is its path: attributes, indices and keys joined by dots. A subclass needs nothing else, not
    even ``super().__init__()``. If it has better names than its attributes, it overrides the method `parts`. If it
    makes variables after its construction, for example at its first call, it makes them ``with self.building():``.

    Sets and objects that are no modules give their contents no names, so the contents have no path in the module. A
    module in them is an outermost module itself.

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

    __module__ = "meshcomm"

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make a module, in the current scope, if any."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        module = super().__new__(cls)
        module._layout_begin()
        return module

    def parts(self) -> Mapping[str, object]:
        """Return the objects in the module by name: its attributes, also in slots, unless a subclass overrides this.

        >>> class Dense(Module):
        ...     def __init__(self):
        ...         self.kernel, self.units = [1.0, 2.0], 2
        >>> dict(Dense().parts())
        {'kernel': [1.0, 2.0], 'units': 2}
        """
        state = object.__getstate__(self)  # the attributes; in a pair with the slots if there are any
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        return {
            name: value for name, value in {**(attributes or {}), **slots}.items() if not name.startswith("_layout_")
        }

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which the module makes variables after its construction.

        They belong to the scope that the module was made in. The map of that scope gives them their layouts, by their
        paths from the outermost module.

        >>> import meshcomm as mc
        >>> class Dense(Module):
        ...     def __call__(self, n):
        ...         with self.building():
        ...             self.kernel = mc.Variable(0.0, (n,))
        >>> with mc.default_mesh(mc.create_mesh([("x", 1)])):
        ...     dense = Dense()
        ...     dense(3)
        >>> dense.kernel.to_numpy().tolist()
        [0.0, 0.0, 0.0]
        """
        scope = self._layout_scope
        return nullcontext() if scope is None else enter_scope(scope, self)

    def named_variables(self) -> "list[tuple[str, Variable]]":
        """Return the variables with their paths from this module, each variable once.

        They are in the order of names and list indices. Names are in the order of ``sorted``: capitals come first,
        then names with a leading underscore. If several paths lead to a variable, it has the first of them.

        >>> import meshcomm as mc
        >>> class Dense(Module):
        ...     def __init__(self):
        ...         self.kernel, self.bias = mc.Variable(0.0, (2, 2)), mc.Variable(0.0, (2,))
        >>> with mc.default_mesh(mc.create_mesh([("x", 1)])):
        ...     dense = Dense()
        >>> [(path, variable.shape) for path, variable in dense.named_variables()]
        [('bias', (2,)), ('kernel', (2, 2))]
        """
        return [(path, variable) for path, variable in walk(self, "", set()) if isinstance(variable, Variable)]

    def variables(self) -> list[Variable]:
        """Return the variables, in the order of `named_variables`.

        >>> import meshcomm as mc
        >>> class Dense(Module):
        ...     def __init__(self):
        ...         self.kernel, self.bias = mc.Variable(0.0, (2, 2)), mc.Variable(0.0, (2,))
        >>> with mc.default_mesh(mc.create_mesh([("x", 1)])):
        ...     dense = Dense()
        >>> [variable.shape for variable in dense.variables()]
        [(2,), (2, 2)]
        """
        return [variable for _, variable in self.named_variables()]

    def trainable_variables(self) -> list[Variable]:
        """Return the variables that are trainable.

        >>> import meshcomm as mc
        >>> class Norm(Module):
        ...     def __init__(self):
        ...         self.scale, self.mean = mc.Variable(1.0, (2,)), mc.Variable(0.0, (2,), trainable=False)
        >>> with mc.default_mesh(mc.create_mesh([("x", 1)])):
        ...     norm = Norm()
        >>> norm.trainable_variables() == [norm.scale]
        True
        """
        return [variable for variable in self.variables() if variable.trainable]
