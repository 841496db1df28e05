"""Regular expressions that match within a known time, whatever the pattern.

`re` backtracks: ``(a+)+$`` takes hours on forty letters. A `Pattern` goes to `re` for keys that are so short that `re`
provably keeps to a limit of time (`backtracking`), which almost all names are. For longer keys it follows all ways
through the pattern at once, one character at a time. That takes linear time, and `re` itself tests single characters
and positions. It is impossible for atomic groups and possessive repeats, and is not done for lookaround. Patterns with
these must be fast in `re` for all keys of up to 1,024 characters. Backreferences, which remember the way, are refused.

The graph of a pattern has steps, which read one character, and other nodes, which read none. A step has a bit, so a
set of steps is an integer. `Pattern.matches` goes from set to set.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _compiler, _parser  # type: ignore[attr-defined]  # which the stubs of typeshed leave out
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from meshcomm._arguments import quote
from meshcomm.errors import LayoutError
from meshcomm.training.backtracking import Items, longest_key, scoped

Mode: TypeAlias = Literal["match", "search", "fullmatch"]
Test: TypeAlias = Callable[[str, int], object]  # of a key and a position in it; the `match` of a compiled pattern
K = TypeVar("K")
V = TypeVar("V")

MAX_KEY = 1024
"""Characters of the keys for which every pattern answers within 50 ms."""

# With these limits the worst patterns found, on keys of MAX_KEY characters, take two thirds of the 50 ms.
MAX_NODES = 400
"""Characters, repeats and alternatives in a pattern, when its counted repeats are written out."""

MAX_SETS = 50
"""Different sets of characters in a pattern."""

MAX_TEXT = 4096
"""Letters in the text of a pattern."""

_MAX_KEPT = 1024
"""Entries of each kind that a pattern remembers from earlier keys."""

_ACCEPT, _START = 1, 2  # the first two bits of a set of steps

_POSITIONS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
}

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}

_NOT_LINEAR = {
    "ASSERT": "looks ahead or behind",
    "ASSERT_NOT": "looks ahead or behind",
    "FAILURE": "looks ahead or behind",
    "ATOMIC_GROUP": "has an atomic group",
    "POSSESSIVE_REPEAT": "has a possessive repeat",
}
_REFUSED = ("GROUPREF", "GROUPREF_EXISTS")

_ANYWHERE = _parser.parse(r"[\s\S]*?")[0]


class _NotLinearError(Exception):
    """The pattern has no graph; the text says why."""


class Pattern:
    """A regular expression without backreferences that answers within 50 ms for keys of up to 1,024 characters.

    It matches what `re` matches: what ``re.match``, ``re.search`` or ``re.fullmatch`` does; *mode* says which.
    ``LayoutError`` if *text* is no regular expression, has backreferences, or is too big: at most 400 characters,
    repeats and alternatives when counted repeats are written out, and 50 different sets. Lookaround, atomic groups and
    possessive repeats are refused where `re` might need longer.

    >>> Pattern(".*dense.*kernel").matches("dense_1.kernel")
    True
    >>> Pattern("(a+)+$").matches("a" * 256 + "b")
    False
    >>> Pattern("^(?!.*embed).*kernel").matches("embed.kernel")
    False
    """

    __slots__ = ("_alive", "_contexts", "_graph", "_longest", "_mode", "_readers", "_with_re", "text")

    def __init__(self, text: str, mode: Mode = "match") -> None:
        if len(text) > MAX_TEXT:
            raise _too_big(text)
        self.text, self._mode = text, mode
        self._contexts: dict[int, list[int]] = {}
        self._alive: dict[tuple[int, int], int] = {}
        self._readers: dict[str, int] = {}
        with _errors_of_ours(text):
            self._prepare()

    def __reduce__(self) -> tuple[type["Pattern"], tuple[str, Mode]]:
        return Pattern, (self.text, self._mode)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Take the state of an older pickle, which has other fields, and no mode: the map that holds it has."""
        self.__init__(state[1]["text"])  # type: ignore[misc]

    def _prepare(self) -> None:
        """Make the graph, if the pattern can have one, and what `re` makes of the pattern."""
        text, mode, obstacle = self.text, self._mode, None
        parsed = _parser.parse(text)
        try:
            self._graph: _Graph | None = _Builder(text).build(parsed, parsed.state.flags)
        except _NotLinearError as why:
            self._graph, obstacle = None, why
        if mode == "search":  # not re.search: that of CPython 3.11 overlooks some matches with (?a:...)
            parsed.insert(0, _ANYWHERE)
        self._longest = longest_key(parsed)
        if obstacle is not None and self._longest < MAX_KEY:
            raise LayoutError(
                f"the pattern {quote(text)} {obstacle}, and re may take more than 50 ms to match it with a name of "
                f"{MAX_KEY} characters; write an exception as a rule of its own before this one: the first rule that "
                "matches counts"
            )
        compiled = _compiler.compile(parsed)
        self._with_re: Callable[[str], object] = compiled.fullmatch if mode == "fullmatch" else compiled.match

    def matches(self, key: str) -> bool:
        """Return whether the pattern matches *key*; ``LayoutError`` if that could take too long."""
        if len(key) <= self._longest:
            return self._with_re(key) is not None
        if self._graph is None:
            raise LayoutError(
                f"the name {quote(key)} has {len(key)} characters: for more than {self._longest} it could take too "
                f"long to match the pattern {quote(self.text)}"
            )
        return self._matches_in_linear_time(key, self._graph)

    def _matches_in_linear_time(self, key: str, graph: "_Graph") -> bool:
        done = _START
        for position in range(len(key) + 1):
            alive = self._after(graph, done, self._context(graph, key, position))
            if alive & _ACCEPT and (self._mode != "fullmatch" or position == len(key)):
                return True
            if position == len(key):
                break
            done = alive & self._reading(graph, key[position])
            if self._mode == "search":
                done |= _START
            elif not done:
                break
        return False

    def _context(self, graph: "_Graph", key: str, position: int) -> int:
        """Return the tests of positions that hold, as bits."""
        return sum(1 << bit for bit, test in enumerate(graph.positions) if test(key, position))

    def _reading(self, graph: "_Graph", character: str) -> int:
        """Return the set of steps that read *character*."""
        readers = self._readers.get(character)
        if readers is None:
            readers = graph.literals.get(character, 0)
            for test, steps in graph.readers.values():
                if test(character, 0):
                    readers |= steps
            _keep(self._readers, character, readers)
        return readers

    def _after(self, graph: "_Graph", done: int, context: int) -> int:
        """Return the set of steps that can follow one of the steps *done*, where the positions of *context* hold."""
        alive = self._alive.get((done, context))
        if alive is None:
            follows = self._contexts.get(context)
            if follows is None:
                follows = _follows(graph, context)
                _keep(self._contexts, context, follows)
            in_a_row = follows[0]
            alive = (done & in_a_row) >> 1
            for bit in _bits(done & ~in_a_row):
                alive |= follows[bit]
            _keep(self._alive, (done, context), alive)
        return alive


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Remember *value*; forget everything else if that is too much."""
    if len(kept) >= _MAX_KEPT:
        kept.clear()
    kept[key] = value


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class _Node(NamedTuple):
    """A node in the graph of a pattern: a step, which reads one character, or another node, which reads none."""

    targets: list[int]
    step: int = 0  # its bit if it is a step; bit 0 is the end, which is node 0, and bit 1 is the start
    position: int = -1  # the bit of the test of positions that must hold here


class _Graph(NamedTuple):
    """A pattern as a graph from its start to its end."""

    nodes: list[_Node]
    after: list[int]  # the node that follows the step of a bit
    literals: dict[str, int]  # the steps that read just this character
    readers: dict[tuple[str, int], tuple[Test, int]]  # the other steps, with the tests of the characters they read
    positions: list[Test]


@contextmanager
def _errors_of_ours(text: str) -> Iterator[None]:
    """Raise ``LayoutError`` instead of what `re` raises for a pattern that is wrong or too big."""
    try:
        yield
    except LayoutError:
        raise
    except (RecursionError, OverflowError):
        raise _too_big(text) from None
    except (re.error, ValueError) as error:  # a ValueError for flags that contradict each other
        raise LayoutError(f"{quote(text)} is not a regular expression: {error}") from None


def _too_big(text: str) -> LayoutError:
    return LayoutError(
        f"the pattern {quote(text)} is too big: it may have {MAX_TEXT} letters, {MAX_SETS} different sets of "
        f"characters, and {MAX_NODES} characters, repeats and alternatives when its counted repeats are written out; "
        "use several smaller rules with the same layout"
    )


class _Builder:
    """Makes the graph of a parsed pattern, from its end to its start. *parsed* and *items* are lists of `re`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.graph = _Graph([_Node([])], [0, 0], {}, {}, [])
        self._tests: dict[tuple[str, int], int] = {}

    def build(self, parsed: Items, flags: int) -> _Graph:
        """Return the graph of *parsed*."""
        self.graph.after[1] = self.sequence(parsed, 0, flags)
        return self.graph

    def node(self, *targets: int, step: int = 0, position: int = -1) -> int:
        nodes = self.graph.nodes
        if len(nodes) > MAX_NODES:
            raise _too_big(self.text)
        nodes.append(_Node(list(targets), step, position))
        return len(nodes) - 1

    def sequence(self, items: Items, then: int, flags: int) -> int:
        """Add *items* before the node *then*, and return the node they start with."""
        for operation, argument in reversed(list(items)):
            then = self.item(operation.name, argument, then, flags)
        return then

    def item(self, name: str, argument: Items, then: int, flags: int) -> int:
        if name in _REFUSED:
            raise LayoutError(f"the pattern {quote(self.text)} refers back to a group, which may take too long")
        if name in _NOT_LINEAR:
            raise _NotLinearError(_NOT_LINEAR[name])
        if name == "SUBPATTERN":
            _, added, removed, items = argument
            return self.sequence(items, then, scoped(flags, added, removed))
        if name == "BRANCH":
            return self.node(*[self.sequence(items, then, flags) for items in argument[1]])
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, items = argument
            return self.repeat(least, most, items, then, flags)
        if name == "AT":
            return self.node(then, position=self.position(_POSITIONS[argument.name], flags))
        return self.step(name, argument, then, flags)

    def step(self, name: str, argument: Items, then: int, flags: int) -> int:
        bit = len(self.graph.after)
        self.graph.after.append(then)
        if name == "LITERAL" and not flags & re.IGNORECASE:
            literals = self.graph.literals
            literals[chr(argument)] = literals.get(chr(argument), 0) | 1 << bit
        else:
            source, readers = _character(name, argument), self.graph.readers
            test, steps = readers.get((source, flags)) or (_compiled(source, flags), 0)
            readers[source, flags] = (test, steps | 1 << bit)
            if len(readers) > MAX_SETS:
                raise _too_big(self.text)
        return self.node(step=bit)

    def position(self, source: str, flags: int) -> int:
        """Return the bit of a test of positions; equal tests have one bit."""
        bit = self._tests.setdefault((source, flags), len(self.graph.positions))
        if bit == len(self.graph.positions):
            self.graph.positions.append(_compiled(source, flags))
        return bit

    def repeat(self, least: int, most: int, items: Items, then: int, flags: int) -> int:
        if most is _parser.MAXREPEAT:
            loop = self.node()
            start = self.sequence(items, loop, flags)
            self.graph.nodes[loop].targets.extend((start, then))
            then, least = (start, least - 1) if least else (loop, 0)
        else:
            end = then
            for _ in range(most - least):
                then = self.node(self.sequence(items, then, flags), end)
        for _ in range(least):
            start = self.sequence(items, then, flags)
            if start == then:  # the items are empty, and so are their repeats
                break
            then = start
        return then


def _compiled(source: str, flags: int) -> Test:
    return re.compile(source, flags & (re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL)).match


def _character(name: str, argument: Items) -> str:
    """Return the text of a pattern that matches the same single characters."""
    if name == "ANY":
        return "."
    if name in ("LITERAL", "NOT_LITERAL"):
        return f"[{'^' * (name == 'NOT_LITERAL')}{_escaped(argument)}]"
    return f"[{''.join(_member(kind.name, value) for kind, value in argument)}]"


def _member(kind: str, value: Items) -> str:
    """Return the text of one member of a set of characters."""
    if kind == "NEGATE":
        return "^"
    if kind == "CATEGORY":
        return _CATEGORIES[value.name]
    return "-".join(map(_escaped, value)) if kind == "RANGE" else _escaped(value)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


def _follows(graph: _Graph, context: int) -> list[int]:
    """Return, for the bit of each step, the set of steps that can follow it where the positions of *context* hold.

    Bit 0 is no step. It has the set of those steps that only the step with the next lower bit can follow.
    """
    nodes = graph.nodes
    reached = [1 << node.step if node.step or not i else 0 for i, node in enumerate(nodes)]
    order = range(len(nodes))
    changed = True
    while changed:  # loops need more than one sweep; a few are enough if directions alternate
        changed = False
        for i in order:
            node = nodes[i]
            if node.position < 0 or context >> node.position & 1:
                reach = reached[i]
                for target in node.targets:
                    reach |= reached[target]
                if reach != reached[i]:
                    reached[i], changed = reach, True
        order = order[::-1]
    follows = [reached[node] for node in graph.after]
    follows[0] = sum(1 << bit for bit in range(3, len(follows)) if follows[bit] == 1 << (bit - 1))
    return follows
