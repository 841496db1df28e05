"""One word, one meaning: names, comments, docstrings, messages and pages do not use the words of these lists."""

import io
import re
import tokenize
from pathlib import Path

import meshcomm as mc
from support.paths import ROOT

PACKAGE = Path(mc.__file__).parent
PYTHON = [*PACKAGE.rglob("*.py"), *ROOT.glob("mpi_examples/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
COMPILED = [path for end in ("pyx", "pxd", "h") for path in PACKAGE.rglob(f"*.{end}")]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]

WORDS = {
    "place|places": "position (in a group), location (of a rank in a mesh)",
    "meet|meets|meeting|meetings": "rendezvous; boxes overlap",
    "partner|partners": "aggregator",
    "mate|mates": "local peer",
    "room|rooms": "buffer, free space",
    "divided": "sharded, cut",
    "crowded": "oversubscribed",
    "chain|chains|chained": "call digest",
    "far|near": "off node, on node",
}
"""Words that stand neither in a name nor in a text, and what is said instead."""

IN_NAMES = {**WORDS, "part|parts": "round, block, tensor of an exchange", "started": "nonblocking"}
IN_TEXTS = {
    **WORDS,
    r"floors|wings?|(a|the|each|lower|higher)\s+floor": "layer, feature",
    r"bounds?\s+on\s+scratch": "scratch limit",
    r"the\s+least\s+possible": "minimum",
    r"started\s+(relayout|move|call)s?": "nonblocking",
    r"wait\s+seconds|`+wait`+\s+seconds": "latency",
    r"(array|tensor|layout|axes|shape)s?\s+of\s+rank": "number of axes, ndim",
    r"(has|have)\s+ranks?\s+\d|rank\s+of\s+(an?|the)\s+(array|tensor|layout)": "number of axes, ndim",
    r"Local(?=[.;:,)]|$)": "nothing: only what is collective says so",
}

NAMES_ALLOWED = {
    "in_place",
    "_in_place",
    "InPlace",
    "chain",
    "place",
}  # the field's; itertools.chain; numpy.place
PARTS_ALLOWED = {"layout_maps", "mpi_examples"}  # folders: users override Module.parts
TEXTS_ALLOWED = (
    r"in(-|\s+)place|(numpy|np)\.place",
    r"(so|as|by|how|thus)\s+far|far\s+(more|less|fewer|larger|smaller)",
    r"(be|is|are|was|were|when|and|not)\s+divided\s+(evenly\s+)?by|divided\s+evenly",
    r"not\s+meeting\s+requirements|must\s+have\s+rank\s+2",  # messages of the seed systems
)


def in_names(names, folder):
    """Yield (line, name, instead) for each of the *names*, pairs of a line and a name, with such a word."""
    for line, name in names:
        words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
        if name not in NAMES_ALLOWED and not (name == "parts" and folder in PARTS_ALLOWED):
            yield from ((line, name, instead) for banned, instead in IN_NAMES.items() if words & {*banned.split("|")})


def in_text(text, first=1):
    """Yield (line, words, instead) for such words in a text that begins on line *first*."""
    for allowed in TEXTS_ALLOWED:
        text = re.sub(rf"(?i)\b({allowed})\b", lambda found: re.sub(r"\S", "~", found.group()), text)
    for banned, instead in IN_TEXTS.items():
        flags = re.MULTILINE | (re.IGNORECASE if banned[:5] != "Local" else 0)
        for found in re.finditer(rf"(?<![\w`./*-])({banned})(?![\w(=])", text, flags):
            yield first + text.count("\n", 0, found.start()), found.group(), instead


def in_python(text, folder):
    """Yield what is wrong in the names, comments and texts of Python; what f-strings insert is no text."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    yield from in_names([(each.start[0], each.string) for each in tokens if each.type == tokenize.NAME], folder)
    for each in tokens:
        if each.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)):
            inserted = re.sub(r"\{[^{}]*\}|\\[nt]", lambda found: "~" * len(found.group()), each.string)
            yield from in_text(inserted, each.start[0])
    comments = {each.start[0]: each.string.lstrip("# ") for each in tokens if each.type == tokenize.COMMENT}
    yield from in_text("\n".join(comments.get(number, "~") for number in range(1, 1 + text.count("\n"))))


def in_compiled(text, folder):
    """Yield what is wrong in Cython or C."""
    blank = lambda found: re.sub(r"[^\n]", " ", found.group())  # noqa: E731 - shorter
    code = re.sub(r'""".*?"""|/\*.*?\*/|//[^\n]*|(?<![\'"])#[^\n]*|"[^"\n]*"|\'[^\'\n]*\'', blank, text, flags=re.S)
    lines = enumerate(code.splitlines(), 1)
    yield from in_names(
        [(number, name) for number, line in lines for name in re.findall(r"[A-Za-z_]\w*", line)], folder
    )
    yield from in_text(text)


def test_words_are_those_of_the_field():
    assert len(PYTHON) > 200
    assert len(PAGES) > 50
    found = []
    for path in [*PYTHON, *COMPILED, *PAGES]:
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        look = (
            in_python if path.suffix == ".py" else in_compiled if path in COMPILED else lambda text, _: in_text(text)
        )
        folder = name.split("/")["meshcomm" in name]
        found += [f"{name}:{line}: not {words!r}, but {instead}" for line, words, instead in look(text, folder)]
    assert found == [], "\n".join(found)


def test_words_are_found():
    program = (
        'place_of = 1\nclass FarBlocks: parts = 2  # One line,\n# its bound\n# on scratch\nf"""a {room}\n mate"""'
    )
    assert [words for _, words, _ in in_python(program, "plans")] == [
        "place_of",
        "FarBlocks",
        "parts",
        "mate",
        "bound\non scratch",
    ]
    assert [words for _, words, _ in in_compiled("/* a\n place */ int room_of = 'f';", "memory")] == [
        "room_of",
        "place",
    ]
    allowed = 'from itertools import chain\nin_place = """In place; as far as possible; not divided by 3; `room`"""\n'
    assert [*in_python(allowed, "plans"), *in_python("parts = 1", "layout_maps")] == []
