"""Automata, which follow all ways through a regular expression at once, one character after the other.

The graph of an expression has steps, which read one character, and gates, which are open at some positions. Each has
a bit, so a set of them is an integer. Other nodes only join these. An automaton goes from set to set: whatever the
expression is, a character costs at most what a full set does, so the time is linear. It remembers which set follows
which, and so is fast. `re` itself tests single characters, and positions such as those of ``\\b``, which is a gate.

A lookahead such as ``(?!.*norm)`` is a gate, too. An automaton of its own reads the text backwards, with the graph of
the lookahead turned round, and so finds all positions from which the lookahead matches. For a lookbehind it reads
forwards. Atomic groups and possessive repeats have no graph, and neither has a reference to a group, for which the way
to it must be remembered.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from re import _parser  # type: ignore[attr-defined]  # which the stubs of typeshed leave out
from typing import NamedTuple, TypeAlias

from meshcomm.training.backtracking import Items, scoped

Reads: TypeAlias = Callable[[str], object]  # of a character; the `match` of a compiled expression
Where: TypeAlias = Callable[[str], Iterable[int]]  # of a text: the positions in it where something holds

# With these limits the worst expressions found, on keys of 1,024 characters, take four fifths of 50 ms.
MAX_NODES = 400
"""Characters, repeats and alternatives in an expression, when its counted repeats are written out."""

MAX_SETS = 50
"""Different sets of characters in an expression."""

MAX_LOOKS = 8
"""Lookaheads and lookbehinds in an expression."""

MAX_KEPT = 16384
"""How much an automaton remembers of ways from set to set, from earlier texts; then it forgets it all."""

_ACCEPT, _START = 1, 2  # the first two bits of a set of steps

_AT_START_OF_LINE, _AT_START = "^", r"\A"
_POSITIONS = {
    "AT_BEGINNING": _AT_START_OF_LINE,
    "AT_BEGINNING_STRING": _AT_START,
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

_NOT_LINEAR = {"ATOMIC_GROUP": "has an atomic group", "POSSESSIVE_REPEAT": "has a possessive repeat"}


class NotLinearError(Exception):
    """The expression has no graph, or too large a one; the text says why."""


class BackreferenceError(Exception):
    """The expression refers back to a group."""


class _Node(NamedTuple):
    """A node in the graph of an expression."""

    targets: list[int]
    bit: int = 0  # if it is a step or a gate; bit 0 is the end, which is node 0, and bit 1 is the start


class _Graph(NamedTuple):
    """An expression as a graph from its start to its end."""

    nodes: list[_Node]
    after: list[int]  # the node that follows the step or gate of a bit
    literals: dict[str, int]  # the steps that read just this character
    readers: dict[tuple[str, int], tuple[Reads, int]]  # the other steps, with the tests of the characters they read
    gates: dict[tuple[str, int], tuple[Where, int]]  # the gates that are open at the same positions, and where


class _State(dict["str | int", "_State"]):
    """How far a text is read: the steps that may come next, and the states that follow by the next character.

    A state that *asks* has gates among its steps. Those that are open lead to the next state, which has none.
    """

    __slots__ = ("_automaton", "accepts", "asks", "is_dead", "steps")

    def __init__(self, automaton: "Automaton", steps: int, asks: bool) -> None:
        super().__init__()
        self._automaton, self.steps, self.asks = automaton, steps, asks
        self.accepts = not asks and bool(steps & _ACCEPT)
        self.is_dead = automaton.starts == steps == 0

    def __missing__(self, symbol: str | int) -> "_State":
        following = self._automaton.following(self, symbol)
        self[symbol] = following
        return following


class Automaton:
    """Finds the positions where matches of an expression end; *parsed* is what the parser of `re` makes of it.

    The matches start at the start of the text, or *anywhere*. ``NotLinearError`` or ``BackreferenceError`` if the
    expression has no automaton.

    >>> ends = Automaton(_parser.parse("(?!ab)a+"), 0).ends
    >>> ends("aaab"), ends("aaab", only_first=True), ends("ab")
    ([1, 2, 3], [1], [])
    """

    __slots__ = (
        "_at_start",
        "_backwards",
        "_before",
        "_behind",
        "_follows",
        "_gates",
        "_graph",
        "_kept",
        "_only_at_start",
        "_reached",
        "_readers",
        "_states",
        "starts",
    )

    def __init__(
        self, parsed: Items, flags: int, anywhere: bool = False, size: "_Size | None" = None, backwards: bool = False
    ) -> None:
        self._graph = _Builder(size or _Size(), backwards).build(parsed, flags)
        self._follows = _follows(self._graph)
        self._backwards = backwards
        self.starts = _START if anywhere else 0
        self._kept = 0
        self._states: dict[int, _State] = {}
        self._reached: dict[int, int] = {}
        self._behind: dict[tuple[int, int], int] = {}
        self._readers: dict[str, int] = {}
        self._before = _State(self, _START, asks=False)  # before the text; "" leads from there to the first position
        self._gates = sum(gates for _, gates in self._graph.gates.values())
        # Those that are open nowhere but at the start of the text, and those that are open there in every text.
        self._only_at_start = 0 if backwards else self._gates_of(_AT_START)
        self._at_start = 0 if backwards else self._gates_of(_AT_START_OF_LINE) | self._only_at_start

    def _gates_of(self, source: str) -> int:
        return sum(gates for (its, _), (_, gates) in self._graph.gates.items() if its == source)

    def ends(self, key: str, only_first: bool = False) -> list[int]:
        """Return the positions where matches end, in the order in which they are found; *only_first* ends there."""
        found: list[int] = []
        open_at: list[int] = []
        state = self._before
        for position, character in enumerate(chain(("",), reversed(key) if self._backwards else key)):
            state = state[character]
            if state.asks:
                open_at = open_at or self._open_at(key)
                state = state[open_at[position]]
            if state.accepts:
                found.append(len(key) - position if self._backwards else position)
                if only_first:
                    break
            elif state.is_dead:
                break
        return found

    def following(self, state: _State, symbol: str | int) -> _State:
        """Return the state that follows a state by a character, or by the gates that are open."""
        self._kept += 1
        if self._kept > MAX_KEPT:
            self._kept = 0
            for kept in self._states, self._reached, self._behind, self._readers, self._before:
                kept.clear()
        if isinstance(symbol, int):
            return self._state(self._through(state.steps, symbol, self._gates))
        reached = self._after(state.steps & self._reading(symbol) | self.starts)
        if symbol:
            return self._state(self._through(reached, 0, self._only_at_start))
        return self._state(self._through(reached, self._at_start, self._at_start))

    def _state(self, steps: int) -> _State:
        state = self._states.get(steps)
        if state is None:
            state = self._states[steps] = _State(self, steps, asks=bool(steps & self._gates))
        return state

    def _open_at(self, key: str) -> list[int]:
        """Return for each position the gates that are open, in the order in which the text is read."""
        open_at = [0] * (len(key) + 1)
        for where, gates in self._graph.gates.values():
            for position in where(key):
                open_at[position] |= gates
        return open_at[::-1] if self._backwards else open_at

    def _reading(self, character: str) -> int:
        """Return the set of steps that read *character*."""
        readers = self._readers.get(character)
        if readers is None:
            readers = self._graph.literals.get(character, 0)
            for reads, steps in self._graph.readers.values():
                if reads(character):
                    readers |= steps
            self._readers[character] = readers
        return readers

    def _through(self, steps: int, is_open: int, known: int) -> int:
        """Return *steps* with those behind gates that are open, without the gates *known* to be open or not."""
        for gate in _bits(steps & is_open):
            behind = self._behind.get((gate, is_open))
            if behind is None:
                behind = self._behind[gate, is_open] = self._reached_through(gate, is_open)
            steps |= behind
        return steps & ~known

    def _reached_through(self, gate: int, is_open: int) -> int:
        """Return the steps and gates behind a *gate* that is open, and behind all others that are open there."""
        self._kept += 1
        steps, opened = 1 << gate, 0
        while following := steps & is_open & ~opened:
            opened |= following
            steps |= self._after(following)
        return steps

    def _after(self, done: int) -> int:
        """Return the steps and gates that can follow one of those *done*."""
        reached = self._reached.get(done)
        if reached is None:
            self._kept += 1
            in_a_row = self._follows[0]
            reached = (done & in_a_row) >> 1
            for bit in _bits(done & ~in_a_row):
                reached |= self._follows[bit]
            self._reached[done] = reached
        return reached


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _follows(graph: _Graph) -> list[int]:
    """Return, for each bit, the set of steps and gates that can follow that step or gate.

    Bit 0 is neither. It has the set of those that only the one with the next lower bit can follow.
    """
    nodes = graph.nodes
    reached = [1 << node.bit if node.bit or not i else 0 for i, node in enumerate(nodes)]
    order = range(len(nodes))
    changed = True
    while changed:  # loops need more than one sweep; a few are enough if directions alternate
        changed = False
        for i in order:
            reach = reached[i]
            for target in nodes[i].targets:
                reach |= reached[target]
            if reach != reached[i]:
                reached[i], changed = reach, True
        order = order[::-1]
    follows = [reached[node] for node in graph.after]
    follows[0] = sum(1 << bit for bit in range(3, len(follows)) if follows[bit] == 1 << (bit - 1))
    return follows


class _Size:
    """How large an expression is, with the automata of its lookaheads and lookbehinds."""

    def __init__(self) -> None:
        self.nodes = self.looks = 0
        self.sets: set[tuple[str, int]] = set()

    def check(self) -> None:
        if self.nodes > MAX_NODES:
            raise NotLinearError(
                f"has more than {MAX_NODES} characters, repeats and alternatives when its counted repeats are written "
                "out"
            )
        if len(self.sets) > MAX_SETS:
            raise NotLinearError(f"has more than {MAX_SETS} different sets of characters")
        if self.looks > MAX_LOOKS:
            raise NotLinearError(f"looks ahead or behind more than {MAX_LOOKS} times")


class _Builder:
    """Makes the graph of a parsed expression, from its end to its start; *backwards* for a text that is read so.

    *items* are lists of `re`.
    """

    def __init__(self, size: _Size, backwards: bool) -> None:
        self._size, self._backwards = size, backwards
        self._graph = _Graph([_Node([])], [0, 0], {"": _START}, {}, {})

    def build(self, items: Items, flags: int) -> _Graph:
        """Return the graph of *items*."""
        self._graph.after[1] = self._sequence(items, 0, flags)
        return self._graph

    def _node(self, *targets: int, bit: int = 0) -> int:
        self._size.nodes += 1
        self._size.check()
        self._graph.nodes.append(_Node(list(targets), bit))
        return len(self._graph.nodes) - 1

    def _sequence(self, items: Items, then: int, flags: int) -> int:
        """Add *items* before the node *then*, and return the node they start with."""
        for operation, argument in list(items)[:: 1 if self._backwards else -1]:
            then = self._item(operation.name, argument, then, flags)
        return then

    def _item(self, name: str, argument: Items, then: int, flags: int) -> int:
        if name in ("GROUPREF", "GROUPREF_EXISTS"):
            raise BackreferenceError
        if name in _NOT_LINEAR:
            raise NotLinearError(_NOT_LINEAR[name])
        if name == "SUBPATTERN":
            _, added, removed, items = argument
            return self._sequence(items, then, scoped(flags, added, removed))
        if name == "BRANCH":
            return self._node(*[self._sequence(items, then, flags) for items in argument[1]])
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, items = argument
            return self._repeat(least, most, items, then, flags)
        if name == "AT":
            return self._position(_POSITIONS[argument.name], then, flags)
        if name in ("ASSERT", "ASSERT_NOT"):
            direction, items = argument
            return self._look(items, then, flags, direction > 0, name == "ASSERT_NOT")
        if name == "FAILURE":
            return self._node()
        return self._step(name, argument, then, flags)

    def _step(self, name: str, argument: Items, then: int, flags: int) -> int:
        bit = self._bit(then)
        if name == "LITERAL" and not flags & re.IGNORECASE:
            literals = self._graph.literals
            literals[chr(argument)] = literals.get(chr(argument), 0) | 1 << bit
        else:
            source, readers = _character(name, argument), self._graph.readers
            self._size.sets.add((source, flags))
            if (source, flags) not in readers:
                readers[source, flags] = (_compiled(source, flags).match, 0)
            reads, steps = readers[source, flags]
            readers[source, flags] = (reads, steps | 1 << bit)
        return self._node(bit=bit)

    def _bit(self, then: int) -> int:
        """Return a new bit, of a step or a gate before the node *then*."""
        self._graph.after.append(then)
        return len(self._graph.after) - 1

    def _gate(self, test: tuple[str, int], where: Where, then: int) -> int:
        """Add a gate before the node *then*."""
        bit = self._bit(then)
        where, gates = self._graph.gates.get(test, (where, 0))
        self._graph.gates[test] = (where, gates | 1 << bit)
        return self._node(bit=bit)

    def _position(self, source: str, then: int, flags: int) -> int:
        """Add a gate for the positions that *source* matches."""
        if source == _AT_START_OF_LINE and not flags & re.MULTILINE:
            source = _AT_START
        finditer = _compiled(source, flags).finditer
        return self._gate((source, flags), lambda key: (match.start() for match in finditer(key)), then)

    def _look(self, items: Items, then: int, flags: int, ahead: bool, must_fail: bool) -> int:
        """Add a gate for a lookahead or lookbehind."""
        self._size.looks += 1
        test = (f"look {self._size.looks}", flags)
        ends = Automaton(items, flags, anywhere=True, size=self._size, backwards=ahead).ends

        def elsewhere(key: str) -> set[int]:
            return {*range(len(key) + 1)}.difference(ends(key))

        return self._gate(test, elsewhere if must_fail else ends, then)

    def _repeat(self, least: int, most: int, items: Items, then: int, flags: int) -> int:
        if most is _parser.MAXREPEAT:
            loop = self._node()
            start = self._sequence(items, loop, flags)
            self._graph.nodes[loop].targets.extend((start, then))
            then, least = (start, least - 1) if least else (loop, 0)
        else:
            end = then
            for _ in range(most - least):
                then = self._node(self._sequence(items, then, flags), end)
        for _ in range(least):
            start = self._sequence(items, then, flags)
            if start == then:  # the items are empty, and so are their repeats
                break
            then = start
        return then


def _compiled(source: str, flags: int) -> re.Pattern[str]:
    return re.compile(source, flags & (re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL))


def _character(name: str, argument: Items) -> str:
    """Return the text of an expression that matches the same single characters."""
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
