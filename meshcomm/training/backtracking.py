"""How long `re` may take to match a pattern, at most: a bound that depends on the length of the key only.

`re` backtracks: it tries all ways through a pattern, one after the other, until one leads to the end. So its time is
at most the sum, over the items of the pattern, of (ways to reach the item) x (time for the item). This module bounds
both by sums of

    c * C(n + k, k),  n: characters of the key, k: unbounded repeats on the way, C: binomial coefficient

written as ``{k: c}``. Why C(n + k, k): a way is known by the lengths of its k repeats, and by the choice of one of c
alternatives. The lengths add up to at most n, and there are C(n + k, k) such lists of k lengths. Products of sums fit:
repeats that follow each other share the n characters, also where the second one stands in a lookahead. So
``{k: c} * {l: d}`` is ``{k + l: c * d}``.

Three items need more thought.

- A repeat of a group. If there is one way through the group at most, then only the number of turns distinguishes the
  ways through the repeat: ``{1: 1}``. If there are several, ways may double with every turn, as in ``(a|ab)*``: there
  is no bound, unless the turns are counted.
- A text such as ``layer`` after a repeat. The least period p of the text is the least distance between two positions
  where it can occur; that of ``layer`` is 5. Of the lengths l of the repeat, those that lead to the text have at least
  this distance. What follows has fewer characters, and so not more ways, f(l), if l is larger. The sum of f over such
  lengths is at most f(0) + sum(f) / p, so ``{k: c}`` becomes ``{k: c / p, k - 1: c}``. This counts once per repeat.
- ``^``. Where it holds, all repeats before it have the length 0: ``{k: c}`` becomes ``{0: c}``.
"""

import re
from collections.abc import Iterator
from math import comb
from re import _parser  # type: ignore[attr-defined]  # which the stubs of typeshed leave out
from typing import Any, TypeAlias

Items: TypeAlias = Any  # what the parser of re makes of a pattern; it has no types
Bound: TypeAlias = dict[int, float]

BUDGET = 30e6
"""Nanoseconds that `re` may take for one key by this bound; a look-up may take 50 ms."""

_LONGEST = 4096  # characters; longer names are rare
_MOST_WAYS = 1e9  # with more, or with more repeats, only a few characters would be short enough
_MOST_REPEATS = 20
_MOST_TURNS = 1000

# Nanoseconds. With these the worst of 6,000 patterns and keys made for it took 1.3 times what the bound says, on a
# busy machine; most took less than a half.
_SINGLE, _IN_SET, _TURN, _CHOICE = 4.0, 15.0, 20.0, 60.0

_SINGLES = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_ONE: Bound = {0: 1.0}


class _NoBoundError(Exception):
    """There is no bound, or none that is small enough for any key."""


def longest_key(parsed: Items) -> int:
    """Return the length of the longest keys for which `re` keeps to the budget, -1 if there are none."""
    try:
        _, time = _sequence(parsed, parsed.state.flags)
    except _NoBoundError:
        return -1
    low, high = -1, _LONGEST + 1
    while high - low > 1:
        middle = (low + high) // 2
        if sum(c * comb(middle + k, k) for k, c in time.items()) <= BUDGET:
            low = middle
        else:
            high = middle
    return low


def _sequence(items: Items, flags: int) -> tuple[Bound, Bound]:
    """Return bounds on the ways through a sequence of items, and on the nanoseconds that all of them take."""
    ways, time = _ONE, dict[int, float]()
    text, follows_repeat = "", False
    for name, argument, item_flags in _flat(items, flags):
        item_ways, item_time = _item(name, argument, item_flags)
        if name == "LITERAL" and follows_repeat and not item_flags & re.IGNORECASE:
            text += chr(argument)
        elif name != "AT":
            stays = follows_repeat and not text and name in _SINGLES
            ways, text, follows_repeat = _thinned(ways, text), "", stays or _repeats_character(name, argument)
        elif argument.name == "AT_BEGINNING_STRING" or (
            argument.name == "AT_BEGINNING" and not item_flags & re.MULTILINE
        ):
            ways, text, follows_repeat = {0: sum(ways.values())}, "", False
        time = _sum(time, _product(ways, item_time))
        ways = _product(ways, item_ways)
    return _thinned(ways, text), time


def _item(name: str, argument: Items, flags: int) -> tuple[Bound, Bound]:
    """Return the bounds for one item."""
    if name in ("LITERAL", "NOT_LITERAL", "ANY", "AT", "FAILURE"):
        return _ONE, {0: _SINGLE}
    if name == "IN":
        return _ONE, {0: _IN_SET + len(argument)}
    if name == "BRANCH":
        branches = [_sequence(items, flags) for items in argument[1]]
        time = [{0: _CHOICE * len(branches)}, *(time for _, time in branches)]
        return _sum(*(ways for ways, _ in branches)), _sum(*time)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        ways, bound = _repeat(argument, flags)
        return (_ONE if name == "POSSESSIVE_REPEAT" else ways), bound
    if name in ("ASSERT", "ASSERT_NOT", "ATOMIC_GROUP"):
        direction, inner = (1, argument) if name == "ATOMIC_GROUP" else argument
        _, bound = _sequence(inner, flags)
        if direction < 0 and max(bound, default=0) > 0:
            raise _NoBoundError  # it starts before the position where it stands
        return _ONE, _sum({0: _CHOICE}, bound)
    raise _NoBoundError


def _repeat(argument: Items, flags: int) -> tuple[Bound, Bound]:
    """Return the bounds for a repeat: those of all numbers of turns together."""
    least, most, items = argument
    goes_on = most is _parser.MAXREPEAT or most > _MOST_TURNS
    turns = least if goes_on else most
    if turns > _MOST_TURNS:
        raise _NoBoundError
    turn_ways, turn_time = _sequence(items, flags)
    turn_time = _sum(turn_time, {0: _TURN if _is_character(items) else _CHOICE})
    ways, time, after = dict[int, float](), turn_time, _ONE
    for turn in range(turns + 1):
        ways = _sum(ways, after) if turn >= least else ways
        if turn < turns:
            after, time = _product(after, turn_ways), _sum(time, _product(after, turn_time))
    if goes_on:
        if turn_ways != _ONE:
            raise _NoBoundError
        numbers: Bound = {1: 1.0 if items.getwidth()[0] else 2.0}  # one turn more may be empty
        ways, time = _product(ways, numbers), _sum(time, _product(ways, _product(numbers, turn_time)))
    return ways, time


def _flat(items: Items, flags: int) -> Iterator[tuple[str, Items, int]]:
    """Yield the items of a sequence, with their flags; those of groups are items of the sequence."""
    for operation, argument in items:
        if operation.name == "SUBPATTERN":
            _, added, removed, inner = argument
            yield from _flat(inner, scoped(flags, added, removed))
        else:
            yield operation.name, argument, flags


def scoped(flags: int, added: int, removed: int) -> int:
    """Return the flags inside a group ``(?added-removed:...)``."""
    if added & (re.ASCII | re.UNICODE):
        flags &= ~(re.ASCII | re.UNICODE)
    return (flags | added) & ~removed


def _is_character(items: Items) -> bool:
    return len(items) == 1 and items[0][0].name in _SINGLES


def _repeats_character(name: str, argument: Items) -> bool:
    """Return whether an item repeats one character without limit, so that what follows may stand at any distance."""
    return name in ("MAX_REPEAT", "MIN_REPEAT") and argument[1] is _parser.MAXREPEAT and _is_character(argument[2])


def _thinned(ways: Bound, text: str) -> Bound:
    """Return a bound on the ways to the end of *text*, which follows a repeat of one character; it may be empty."""
    if not text:
        return ways
    period = next(p for p in range(1, len(text) + 1) if text.startswith(text[p:]))
    last = {k - 1 if k else 0: c for k, c in ways.items()}
    return _sum(last, {k: c / period for k, c in ways.items() if k})


def _sum(*bounds: Bound) -> Bound:
    total = dict[int, float]()
    for bound in bounds:
        for k, c in bound.items():
            total[k] = total.get(k, 0.0) + c
    return total


def _product(left: Bound, right: Bound) -> Bound:
    product = dict[int, float]()
    for k, c in left.items():
        for other, d in right.items():
            product[k + other] = product.get(k + other, 0.0) + c * d
    if max(product, default=0) > _MOST_REPEATS or max(product.values(), default=0.0) > _MOST_WAYS:
        raise _NoBoundError
    return product
