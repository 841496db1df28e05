"""Regular expressions that match within a known time, whatever the pattern.

`re` backtracks: ``(a+)+$`` takes hours on forty letters. A `Pattern` goes to `re` for keys that are so short that `re`
provably keeps to a limit of time (`backtracking`), which almost all names are. Longer keys go to an automaton
(`automata`), which takes linear time. Patterns that have none must be fast in `re` for all keys of up to 1,024
characters.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _compiler, _parser  # type: ignore[attr-defined]  # which the stubs of typeshed leave out
from typing import Any, Literal, TypeAlias

from meshcomm._arguments import quote
from meshcomm.errors import LayoutError
from meshcomm.training.automata import Automaton, BackreferenceError, NotLinearError
from meshcomm.training.backtracking import longest_key

Mode: TypeAlias = Literal["match", "search", "fullmatch"]

MAX_KEY = 1024
"""Characters of the keys for which every pattern answers within 50 ms."""

MAX_TEXT = 4096
"""Letters in the text of a pattern."""

_ANYWHERE = _parser.parse(r"[\s\S]*?")[0]


class Pattern:
    """A regular expression without backreferences that answers within 50 ms for keys of up to 1,024 characters.

    It matches what `re` matches: what ``re.match``, ``re.search`` or ``re.fullmatch`` does; *mode* says which.
    ``LayoutError`` if *text* is no regular expression, has backreferences or more than 4,096 letters. Atomic groups,
    possessive repeats, more than eight lookaheads and lookbehinds, more than 400 characters, repeats and alternatives
    when counted repeats are written out, and more than 50 different sets are refused where `re` might need longer.

    >>> Pattern(".*dense.*kernel").matches("dense_1.kernel")
    True
    >>> Pattern("(a+)+$").matches("a" * 256 + "b")
    False
    >>> Pattern("^(?!.*embed).*layers.*kernel").matches("embed.layers.kernel")
    False
    """

    __slots__ = ("_automaton", "_longest", "_mode", "_with_re", "text")

    def __init__(self, text: str, mode: Mode = "match") -> None:
        if len(text) > MAX_TEXT:
            raise LayoutError(f"the pattern {quote(text)} has {len(text)} letters; at most {MAX_TEXT} are allowed")
        self.text, self._mode = text, mode
        with _errors_of_ours(text):
            self._prepare()

    def __reduce__(self) -> tuple[type["Pattern"], tuple[str, Mode]]:
        return Pattern, (self.text, self._mode)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Take the state of an older pickle, which has other fields, and no mode: the map that holds it has."""
        self.__init__(state[1]["text"])  # type: ignore[misc]

    def _prepare(self) -> None:
        """Make the automaton, if the pattern can have one, and what `re` makes of the pattern."""
        text, mode, obstacle = self.text, self._mode, None
        parsed = _parser.parse(text)
        try:
            self._automaton: Automaton | None = Automaton(parsed, parsed.state.flags, anywhere=mode == "search")
        except NotLinearError as why:
            self._automaton, obstacle = None, why
        if mode == "search":  # not re.search: that of CPython 3.11 overlooks some matches with (?a:...)
            parsed.insert(0, _ANYWHERE)
        self._longest = longest_key(parsed)
        if obstacle is not None and self._longest < MAX_KEY:
            raise LayoutError(
                f"the pattern {quote(text)} {obstacle}, and re may take more than 50 ms to match it with a name of "
                f"{MAX_KEY} characters; use several smaller rules: the first one that matches counts, so an exception "
                "is a rule before the others"
            )
        compiled = _compiler.compile(parsed)
        self._with_re: Callable[[str], object] = compiled.fullmatch if mode == "fullmatch" else compiled.match

    def matches(self, key: str) -> bool:
        """Return whether the pattern matches *key*; ``LayoutError`` if that could take too long."""
        if len(key) <= self._longest:
            return self._with_re(key) is not None
        automaton = self._automaton
        if automaton is None:
            raise LayoutError(
                f"the name {quote(key)} has {len(key)} characters: for more than {self._longest} it could take too "
                f"long to match the pattern {quote(self.text)}"
            )
        if self._mode == "fullmatch":
            return automaton.ends(key)[-1:] == [len(key)]
        return bool(automaton.ends(key, only_first=True))


class _Node:
    """What pickles of version 0.1 hold, and `Pattern.__setstate__` drops: a part of a graph."""

    def __new__(cls, *_fields: object) -> "_Node":
        return super().__new__(cls)


_Graph = _Node


@contextmanager
def _errors_of_ours(text: str) -> Iterator[None]:
    """Raise ``LayoutError`` instead of what `re` raises for a pattern that is wrong or too big."""
    try:
        yield
    except LayoutError:
        raise
    except BackreferenceError:
        raise LayoutError(f"the pattern {quote(text)} refers back to a group, which no pattern may do") from None
    except (RecursionError, OverflowError):
        raise LayoutError(f"the pattern {quote(text)} is nested too deeply, or has too many repeats") from None
    except (re.error, ValueError) as error:  # a ValueError for flags that contradict each other
        raise LayoutError(f"{quote(text)} is not a regular expression: {error}") from None
