"""Public functions that differ in their names only: one body with one signature serves them all."""

from collections.abc import Callable
from functools import partial
from inspect import cleandoc, signature
from typing import Concatenate, Generic, ParamSpec, TypeVar

from meshcomm.ranks.refusals import refusable

P = ParamSpec("P")
R = TypeVar("R")


class Family(Generic[P, R]):
    """The functions that one body serves.

    Parameters
    ----------
    source: the module of whose functions they take the arguments
    body: takes the name of a function, and then what the function takes
    """

    def __init__(self, source: str, body: Callable[Concatenate[str, P], R]) -> None:
        self._source, self._body = source, body
        self._first = ""

    def __call__(self, name: str, summary: str, arguments: str = "") -> Callable[P, R]:
        """Return the public function of this *name*.

        Parameters
        ----------
        name: of the function
        summary: the first paragraph of its docstring
        arguments: the rest of its docstring; by default it names the first function of the family
        """
        self._first = self._first or name
        rest = cleandoc(arguments or f"Arguments are those of `{self._first}`.")
        one = partial(self._body, name)
        vars(one).update(
            __name__=name,
            __qualname__=name,
            __module__=self._body.__module__,
            __annotations__=self._body.__annotations__,
            __doc__=f"{summary}\n\nSource: {self._source}.{name}.\n\n{rest}\n",
        )
        function = refusable(one)
        vars(function).clear()  # doctest would look at what is wrapped, which is no function
        vars(function)["__signature__"] = signature(one)
        return function


def family(source: str) -> Callable[[Callable[Concatenate[str, P], R]], Family[P, R]]:
    """Return a decorator for the body of functions that take the arguments of those in the module *source*.

    >>> @family("doc")
    ... def _say(name: str, what: int = 1) -> str:
    ...     return f"{name} {what}"
    >>> one = _say("one", "Return a text.", "what: a number")
    >>> one(2), one.__name__, str(signature(one)), one.__doc__.splitlines()[0]
    ('one 2', 'one', '(what: int = 1) -> str', 'Return a text.')
    """
    return partial(Family, source)
