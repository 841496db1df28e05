"""Families: public functions that differ in their names only, and share one body with one signature."""

from collections.abc import Callable
from functools import partial
from inspect import cleandoc, signature
from typing import Concatenate, Generic, ParamSpec, TypeVar

from meshcomm.core.ranks.local_errors import refusable

P = ParamSpec("P")
R = TypeVar("R")


class Family(Generic[P, R]):
    """A maker of public functions that share one body.

    Parameters
    ----------
    source: module whose functions have these names and arguments
    like: name of the function that docstrings refer to for the arguments; by default the first one of the family
    body: function of a name, followed by the arguments of the public function
    """

    def __init__(self, source: str, like: str, body: Callable[Concatenate[str, P], R]) -> None:
        self._source, self._like, self._body = source, like, body

    def __call__(self, name: str, summary: str = "", arguments: str = "") -> Callable[P, R]:
        """Return the public function of this *name*.

        Parameters
        ----------
        name: name of the function
        summary: first paragraph of its docstring; by default the docstring of the body is used
        arguments: rest of its docstring; by default a reference to the function with the same arguments
        """
        self._like = self._like or name
        if not summary:
            summary, _, arguments = cleandoc(self._body.__doc__ or "").partition("\n\n")
        arguments_text = cleandoc(arguments or f"Arguments are those of `{self._like}`.")
        bound = partial(self._body, name)
        vars(bound).update(
            __name__=name,
            __qualname__=name,
            __module__=self._body.__module__,
            __annotations__=self._body.__annotations__,
            __doc__=f"{summary}\n\nSource: {self._source}.{name}.\n\n{arguments_text}\n",
        )
        function = refusable(bound)
        vars(function).clear()  # doctest would examine the wrapped object, which is no function
        vars(function)["__signature__"] = signature(bound)
        return function


def family(source: str, like: str = "") -> Callable[[Callable[Concatenate[str, P], R]], Family[P, R]]:
    """Return a decorator for the body of functions that take the arguments of functions of the module *source*.

    Arguments are those of `Family`.

    >>> @family("doc")
    ... def _say(name: str, number: int = 1) -> str:
    ...     "Return a text."
    ...     return f"{name} {number}"
    >>> one, two = _say("one"), _say("two", "Return another text.")
    >>> two(2), two.__name__, str(signature(two)), one.__doc__.splitlines()[0], two.__doc__.splitlines()[0]
    ('two 2', 'two', '(number: int = 1) -> str', 'Return a text.', 'Return another text.')
    """
    return partial(Family, source, like)
