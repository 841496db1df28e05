"""What a team still knows about its last calls, gathered when a rank writes its flight file.

Calls leave nothing for this: it is made from the digests and the programs that a team keeps anyway.
"""
# What is known, and of which calls
# =================================
#
# (A) A team keeps its last `REMEMBERED_DIGESTS` digests, each with the number of the call that had begun last. A call
#     may note none (it is local), one, or several (it agrees again, or makes others within it). What it notes after a
#     call within it counts as that one's.
# (B) Digests are of all calls since the ranks last found a difference. In a right program all ranks have the same ones
#     after equally many noted calls. From the first different call on, all of them differ.
# (C) The oldest call that a team remembers may have noted more than is remembered, so its digests cannot be told from
#     later ones of another rank. It is left out, unless nothing came before it.
# (D) A digest does not say what the call was about. But a call that the ranks had made before has a program, whose key
#     has the arguments; and the digest before it, together with the number of the program, gives the digest after it.
#     The key is looked for like this. None is found for calls that are agreed on each time, for one whose program is
#     dropped, and for the call after one with an error, or after one within others: they change the digest once more.

from collections.abc import Container, Hashable, Mapping
from typing import NamedTuple

import numpy as np

from meshcomm._arguments import quote
from meshcomm.failures.watch import Team
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.mesh import Mesh

_LONGEST_TEXT = 400  # letters


class Noted(NamedTuple):
    """What a call has noted."""

    digests: tuple[str, ...] = ()  # the digest of all calls after each call that it noted, as hexadecimal numbers
    about: str = ""  # the arguments of the first of them; nothing if they are not known


NOTHING = Noted()


def next_digest(before: int, number: int) -> int:
    """Return the digest of all calls after the call *number*."""
    return hash((before, number)) >> 2


def noted(team: Team, calls: Container[int]) -> dict[int, Noted]:
    """Return what calls on *team* have noted, by their numbers: of *calls*, those that did. For other threads."""
    found: dict[int, Noted] = {}
    digests, known = team.last_digests(), team.known()
    oldest = digests[0][2] if digests and digests[0][0] > 1 else None
    before = 0
    for _, digest, call in digests:
        if call != oldest and call in calls:
            its = found.get(call) or Noted(about=_about(before, digest, known))
            found[call] = its._replace(digests=(*its.digests, f"{digest % 2**64:x}"))
        before = digest
    return found


def _about(before: int, digest: int, known: Mapping[int, Hashable]) -> str:
    """Return the arguments of the *known* call that makes *digest* of the one *before*."""
    keys = (key for number, key in known.items() if next_digest(before, number) == digest)
    text = key_text(next(keys, None))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."


def key_text(key: Hashable) -> str:
    """Return the arguments in the key of a call, as text for people; nothing if none of them has a short one.

    >>> rows = Layout(["x", "unsharded"], Mesh(range(2), [("x", 2)]))
    >>> key_text(("start", rows, (4, 6), np.dtype("f8"), None))
    'start, [x, unsharded] on mesh x=2 over ranks 0 to 1, (4, 6), float64'
    """
    arguments = key if isinstance(key, tuple) else (key,)
    return ", ".join(text for text in map(_text, arguments) if text)


def _text(argument: object) -> str:
    if isinstance(argument, Layout):
        return f"{specs_text(argument.sharding_specs)} on {argument.mesh}"
    if isinstance(argument, str | Mesh | np.dtype):
        return str(argument)
    if isinstance(argument, tuple) and not all(isinstance(each, int) for each in argument):
        inside = ", ".join(filter(None, map(_text, argument)))
        return inside and f"({inside})"
    return quote(argument) if isinstance(argument, bool | int | float | complex | tuple) else ""
