"""Inputs for parsers: valid texts and bytes with a few changes, determined by a seed."""

from copy import deepcopy
from random import Random

NUMBERS = ["0", "1", "-1", "7", "007", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 400, "1e999"]
CHARACTERS = [*"|,=+:*/. -_xyab01(){}[]?^$\\<!>P#\n\t\0\u00e9\u0130\u2003\u0663\ud800\U0001f600"]


def texts(seeds, words, seed=0):
    """Yield texts without end: each is one of the *seeds*, with up to four changes that may insert *words*."""
    random = Random(seed)
    pieces = [*words, *NUMBERS, *CHARACTERS]
    while True:
        text = random.choice(seeds)
        for _ in range(random.randrange(5)):
            text = _changed(text, random, pieces, seeds)
        yield text


def wires(seeds, seed=0):
    """Yield bytes without end: each is one of the *seeds*, with up to four changes."""
    random = Random(seed)
    pieces = [bytes([i]) for i in (0, 1, 2, 8, 10, 16, 18, 26, 34, 127, 128, 255)]
    pieces += [b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x00"]
    pieces.append(b"\x3a\x02\x12\x00")
    while True:
        data = random.choice(seeds)
        for _ in range(random.randrange(5)):
            data = _changed(data, random, pieces, seeds)
        yield data


def _changed(text, random, pieces, seeds):
    """Return *text* with something inserted, replaced, removed, repeated, or followed by the end of another seed."""
    start = random.randrange(len(text) + 1)
    end = min(len(text), start + random.choice([0, 1, 1, 2, 5, 20]))
    kind = random.randrange(8)
    if kind == 0:
        return text[:start] + text[end:]
    if kind == 1:
        return text[:end] + text[start:end] * random.choice([1, 2, 50]) + text[end:]
    if kind == 2:
        other_seed = random.choice(seeds)
        return text[:start] + other_seed[random.randrange(len(other_seed) + 1) :]
    return text[:start] + random.choice(pieces) + text[end if kind < 6 else start :]


ODD_VALUES = [
    *(0, 1, -1, 7, 2**31, 2**61, 2**62, 2**63 - 1, 2**64, 10**400, 0.0, 2.0, 1e308, float("nan"), True, None),
    *("", "x", "a", "/", ".", "..", "../../x", "/etc/passwd", "a\0b", "\ud800", "\u202e", "x" * 5000),
    *("|O", "V0", "<U9"),
    *([], {}, [0], [1], [2**40, 2**40], [0, 2**61], [-1, -1], [1.0], [[]], [1] * 64, [1] * 65, {"": 0}, {"name": []}),
]


def documents(seeds, words=(), seed=0):
    """Yield values for JSON without end: each is one of the *seeds* with up to four changes inside of it."""
    random, odd_values = Random(seed), [*words, *ODD_VALUES]
    while True:
        document = deepcopy(random.choice(seeds))
        for _ in range(random.randrange(1, 5)):
            document = _replaced(document, random, odd_values)
        yield document


def _replaced(value, random, odd_values):
    """Return *value* with an entry removed, repeated, renamed, or replaced by another entry or an odd value."""
    if not value or not isinstance(value, dict | list) or not random.randrange(8):
        return deepcopy(random.choice(odd_values))
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key, other_key, kind = random.choice(keys), random.choice(keys), random.randrange(10)
    if kind < 6:
        value[key] = _replaced(value[key], random, odd_values)
    elif kind == 6:
        del value[key]
    elif kind == 7:
        value[key] = deepcopy(value[other_key])
    elif isinstance(value, list):
        value.insert(key, deepcopy(random.choice(odd_values)))
    else:
        name = random.choice(odd_values)
        value[name if isinstance(name, str) else other_key] = deepcopy(value[key])
    return value
