"""What ruff and import-linter do not check: sizes, calls upwards, what only some folders may do, words."""

import ast
import re
import subprocess
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import meshcomm as mc
from support.paths import ROOT

PACKAGE = Path(mc.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
COMPILED = sorted(path for end in ("pyx", "pxd", "h") for path in PACKAGE.rglob(f"*.{end}"))
PROGRAMS = sorted(path for folder in ("benchmarks", "mpi_examples") for path in (ROOT / folder).rglob("*.py"))

HOOKS = {
    "world": {"provides ranks", "call layouts"},
    "relayout": {"provides arrays", "call plans", "call arrays"},
    "numpy": {"provides numpy", "call arrays", "call layout_maps"},
    "whole": {"provides numpy", "call arrays"},
    "traced": {"provides adapters", "call _tracing.py"},
    "namespace": {"provides array_api", "call arrays"},
}
"""Calls upwards: the folder that provides the function, and those that call it."""

ONLY_IN = {
    # Communicators.
    r"\.(Dup|Idup|Split|Split_type|Create|Create_group|Create_cart|Clone|Free)\(": "ranks/|failures/side_channel",
    r"\b(?<!np\.)shares_memory\b": "ranks/|transport/choose",  # what a way is chosen by
    r"\.relay_pays\b|\"relay_pays\"": "transport/choose",
    r"def __del__": "nowhere",  # what MPI frees, all ranks free together
    r"allow_pickle": r"numpy/namespace/files\.py",  # an argument of NumPy's
    r"\bmpi4py.*\b(futures|util)\b": "nowhere",
    r"^(import meshcomm\b(?!\.)|from meshcomm import (?!_|errors\b))": "tools/cli/|__init__|_public",  # public names
    r"(import|from) (torch|jax|cupy)\b": "torch",  # programs without them do not pay for them
    # Messages, and collective calls.
    r"\.(?=[A-Z])(?i:[ibsr]?(send|recv)|i?(bcast|gather|scatter|all(gather|to|reduce)|reduce|e?x?scan|barrier|m?probe))"
    r"\w*\(": "ranks/(mpi|channels|interruptible)|failures/side_channel",
    # Methods of mpi4py that pickle. Some of ours have the names of others.
    r"(?<!communicator)(?<!communicator\(\))(?<!_channel)(?<!self)(?<!session)(?<!ranks)"
    r"\.(send|(all)?gather)\(": "nowhere",
    r"(?<!ufunc)(?<!Halo)(?<!variable)\.reduce\(": "nowhere",
    r"\.([bis]send|issend|i?recv|bcast|scatter|all(toall|reduce)|e?x?scan)\(": "ranks/interruptible",
    r"(?<!json)\.(loads|dumps)\(": "nowhere",
    # One file opens what is written, and decides about links, owners, permissions and names.
    r"\b(os|io)\.(open|fdopen|mkfifo|link|symlink|rename|replace)\(": "_files|storage/files|ranks/rendezvous",
    r"(?<![\w.\"])(?<!def )open\((?!.*\"rb\")(?!\"/proc/)(?!os\.devnull)(?!$)(?!path: )": "_files|tools/cli/bench/",
    r"\.open\((mode=)?[\"'][wax]|\.write_(text|bytes)\(|\.(touch|symlink_to|hardlink_to)\(": "nowhere",
    r"\brealpath\(": "storage/changes|storage/formats/safetensors|tools/cli/",  # `resolved` looks who made the links
    r"tempfile\.(mkstemp|Named|Spooled|mktemp)": "nowhere",
    r"(chmod|chown)\(": "_files|storage/files",
}
"""What only some files may do: regular expressions of lines of code, and of the files."""


@cache
def code(path):
    """Return the lines of code by their numbers: no blanks, comments, docstrings and texts below constants."""
    text = path.read_text()
    if path in COMPILED:
        text = re.sub(r'""".*?"""|/\*.*?\*/', lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
        texts, comment = set(), "# |//|#$"
    else:
        lone = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        lone = (node for node in lone if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
        comment = "#"
        texts = {number for node in lone for number in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return {number: line for number, line in lines if line and number not in texts and not re.match(comment, line)}


def place(path):
    """Return where a file is in the package; of one in the core, where it is there."""
    return path.relative_to(PACKAGE).as_posix().removeprefix("core/")


def folder(path):
    return place(path).partition("/")[0]


def test_files_and_functions_are_short():
    assert len(SOURCES) > 200
    assert len(COMPILED) > 20
    long = {path: len(code(path)) for path in [*SOURCES, *COMPILED] if len(code(path)) > 400}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = sum(node.lineno <= line <= node.end_lineno for line in code(path))
                if length > 40:
                    long[f"{path}:{node.lineno}"] = length
    assert long == {}


def test_calls_upwards_are_six():
    found = {}
    for path in SOURCES:
        for use, hook in re.findall(r'_hooks\.(\w+)\(\s*(?:"(\w+)")?', "\n".join(code(path).values())):
            found.setdefault(hook, set()).add(f"{use} {folder(path)}")
        assert path.name == "_hooks.py" or "meshcomm.core._hooks" not in path.read_text()
    assert found == HOOKS


def imported(path):
    """Yield all that a file imports: when it runs, in functions, for type checkers, and by names in strings."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and "import_module(" in text:
            yield from re.findall(r"^meshcomm\.[\w.]+\w$", str(node.value))


def test_no_file_needs_itself_through_others():
    """Also not by types: who reads a file has read those below it. Only hooks lead upwards."""
    modules = {}
    for path in [*SOURCES, *PACKAGE.rglob("*.pyi")]:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        modules.setdefault(name, []).append(path)

    def module(name):
        return name if name in modules else module(name.rpartition(".")[0])

    needs = {
        name: {module(each) for path in paths for each in imported(path) if each.startswith("meshcomm")} - {name}
        for name, paths in modules.items()
        if name not in ("meshcomm", "meshcomm.core._hooks")
    }
    assert "meshcomm.storage.save" in needs["meshcomm.numpy.namespace.files"], "by a name in a string"
    TopologicalSorter(needs).prepare()  # CycleError says what is in a circle


def test_who_may_do_what():
    found = [
        f"{path}:{number}: {line}"
        for path in SOURCES
        for number, line in code(path).items()
        for what, where in ONLY_IN.items()
        if re.search(what, line) and not re.match(where, place(path))
    ]
    assert found == []


def test_compiled_modules_know_no_mpi_no_environment_and_no_pickles():
    wrong = re.compile(r"mpi4py|\bMPI_[A-Z]|cimport numpy|\b(environ|getenv)\b|\bpickle\b(?!=)")
    assert [f"{path}:{n}" for path in COMPILED for n, line in code(path).items() if wrong.search(line)] == []


def test_private_names_stay_in_their_folder():
    found = []
    for path in [*SOURCES, *PROGRAMS]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("meshcomm"):
                package = PACKAGE.joinpath(*node.module.split(".")[1:])
                private = [
                    each.name
                    for each in node.names
                    if re.match("_[^_]", each.name) and not list(package.glob(f"{each.name}.*"))
                ]
                if private and not path.is_relative_to(PACKAGE / [*node.module.split("."), ""][1]):
                    found.append(f"{path}:{node.lineno}: {private}")
    assert found == []


WORDS = {
    "place places": "position (in a group), location (of a rank in a mesh)",
    "meet meets meeting meetings": "rendezvous; boxes overlap",
    "partner partners": "aggregator",
    "mate mates": "local peer",
    "room rooms": "buffer, free space",
    "divided": "sharded, cut",
    "crowded": "oversubscribed",
    "chain chains chained": "call digest",
    "far near": "off node, on node",
}
"""Words that have many meanings, and what names and texts say instead."""
INSTEAD = {word: instead for words, instead in WORDS.items() for word in words.split()}
FINE = (
    r"in[-_\s]?place|\b(np|numpy)\.place\b|`place`|\bplace\(|\bchain(?=[(.])|import chain"
    r"|\b(so|as|by|how|thus)\s+far\b|\bfar\s+(more|less|fewer|larger|smaller)|divided\s+(evenly|by)|not\s+meeting"
)
"""What the field says, NumPy, Python, and the seed systems in their messages."""
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def unclear(text):
    """Yield each word of a text that stands in `INSTEAD`, also as a part of a name, and its line."""
    text = re.sub(f"(?i){FINE}", lambda found: re.sub(r"\S", "~", found.group()), text)
    for found in re.finditer(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text):
        if found.group().lower() in INSTEAD:
            yield found.group(), 1 + text.count("\n", 0, found.start())


def test_one_word_has_one_meaning():
    assert len(PAGES) > 50
    paths = [*SOURCES, *COMPILED, *PROGRAMS, *PAGES]
    found = [(path, line, word, INSTEAD[word.lower()]) for path in paths for word, line in unclear(path.read_text())]
    assert found == []
    text = "place_of = 1\nclass FarBlocks: pass  # a mate, in place, np.place, so\nfar"
    assert [*unclear(text)] == [("place", 1), ("Far", 2), ("mate", 2)]


def test_no_file_names_a_path_of_this_machine():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = {name: (ROOT / name).read_text("utf-8", errors="ignore") for name in names if (ROOT / name).is_file()}
    assert len(texts) > 500
    assert [name for name, text in texts.items() if f"{ROOT}/" in text and len(ROOT.parts) > 2] == []
