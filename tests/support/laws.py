"""The laws of the house, for any tree of sources: each gives the violations that it finds, a line of text each.

`Tree` reads a package and everything below it. The tables say what the house is; tests/house holds the package to
them, and shows on made-up trees that each law finds what it is for.
"""

import ast
import io
import re
import tokenize
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

# -- the house --------------------------------------------------------------------------------------------------------

FLOORS = ("root", "memory", "layouts", "plans", "failures", "ranks", "transport", "arrays")
"""Folders of the package, lowest first; root is the package's own folder. What is not here is a wing, or a facade."""

MAY_IMPORT = {
    "root": ("errors", "_types", "_hooks"),
    "memory": ("root",),
    "layouts": ("root",),
    "plans": ("root", "layouts"),
    "failures": ("root", "layouts"),
    "ranks": ("root", "layouts", "memory", "failures"),
    "transport": ("root", "memory", "failures", "ranks", "layouts.boxes", "layouts.partition", "layouts.machine"),
    "arrays": ("root", "memory", "layouts", "plans", "failures", "ranks", "transport"),
    "ops": FLOORS,
    "training": (*FLOORS, "ops.random"),
    "compat": FLOORS,
    "linalg": FLOORS,
    "adapters": ("root", "arrays", "ops"),
    "storage": FLOORS,
    "fft": (*FLOORS, "ops"),
    "halos": (*FLOORS, "ops"),
    "measuring": ("root", "memory", "failures", "ranks"),
    "pictures": ("root", "layouts", "plans"),
    "cli": ("",),
    "testing": ("",),
}
"""What each folder may import, besides itself: folders or modules, from the package's folder on; "" is everything."""

FACADES = ("__init__", "array_api", "gradients", "logical_devices", "ndimage")
"""Files in the package's own folder that offer names of any floor; no other file imports them."""

COMMAND = "__main__"
"""The file that starts the command: it may import cli only."""


class Hook(NamedTuple):
    """A call up the floors: the folder that provides the function, and those that call it."""

    provided_by: str
    called_by: tuple[str, ...]


HOOKS = {
    "world": Hook("ranks", ("layouts",)),
    "relayout": Hook("arrays", ("plans", "arrays")),
    "numpy": Hook("ops", ("arrays", "training")),
    "traced": Hook("adapters", ("root",)),
}
MOST_HOOKS = 4

USES_MPI = ("ranks", "failures")
READS_ENVIRONMENT = ("ranks", "failures", "cli/about.py", "cli/facts.py", "cli/terminal.py", "linalg/native.py")
"""Folders, and files."""
CREATES_COMMUNICATORS = ("ranks", "failures")
CREATORS = {"Dup", "Split", "Create", "Create_group", "Split_type", "Clone", "Create_cart", "Idup", "Free"}

PICKLES = "_pickles.py"
"""The file that lets pickles of public objects load."""
PICKLERS = (
    *("pickle", "_pickle", "pickletools", "copyreg", "shelve", "marshal", "dill", "cloudpickle", "joblib"),
    *("multiprocessing", "mpi4py.futures", "mpi4py.util"),
)
PICKLING = {
    *("bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan"),
    *("send", "bsend", "ssend", "isend", "ibsend", "issend", "recv", "irecv", "sendrecv", "mprobe", "improbe"),
    *("neighbor_allgather", "neighbor_alltoall", "Get_pickle", "loads", "dumps"),
}
"""Methods of mpi4py, and of modules that pickle."""
COMMUNICATORS = ("communicator", "_channel", "json", "ufunc", "Halo")
"""What methods of ours with such names are called on, and the one of NumPy's universal functions."""

CHOOSES = "transport/choose.py"
WAYS = ("transport/packed.py", "transport/in_place.py", "transport/relay.py")
"""The ways in which bytes go. Only the file that chooses makes them."""
DECISIONS = ("shares_memory", "relay_pays")
"""Names of what a way is chosen by. Only the file that defines one, and the one that chooses, may ask for it."""
THRESHOLDS = ("ROUND_BYTES",)
"""Names of the constants that a way, and its rounds, are chosen by. Only the file that chooses may import them."""

MOST_CODE_LINES = 400
MOST_LINES_OF_A_FUNCTION = 40
MOST_POSITIONAL = 5
MOST_ANY = 150


# -- the sources ------------------------------------------------------------------------------------------------------


class Import(NamedTuple):
    """An import as the program runs: the module it is of, the name taken out of it or None, and the line."""

    module: str
    name: str | None
    line: int


class Module:
    """One Python file of a package; its name is the path in the package, with dots: ``layouts.mesh``."""

    def __init__(self, tree, path):
        self.package, self.path = tree.package, path
        self.file = path.relative_to(tree.root).as_posix()
        parts = self.file.removesuffix(".py").split("/")
        self.name = ".".join(parts[:-1]) if len(parts) > 1 and parts[-1] == "__init__" else ".".join(parts)
        self.folder = parts[0] if len(parts) > 1 else "root"
        self.text = path.read_text()
        self.ast = ast.parse(self.text)

    @cached_property
    def imports(self):
        """What is imported when the file runs, at its top or in a function."""
        return [found for node in at_run_time(self.ast) for found in imported(node)]

    @cached_property
    def nodes(self):
        """All nodes of the tree: each law asks for them."""
        return list(ast.walk(self.ast))

    @cached_property
    def code_lines(self):
        return code_lines(self.text, self.ast)

    def own(self, found):
        """Return the imported name below the package, "" for the package itself, None for other packages."""
        if found.module == self.package:
            return ""
        prefix = f"{self.package}."
        return found.module.removeprefix(prefix) if found.module.startswith(prefix) else None


class Tree:
    """A package with its sub-folders; *beside* are files outside of it: documents and programs that use it."""

    def __init__(self, root, beside=()):
        self.root, self.package = Path(root), Path(root).name
        paths = [path for path in sorted(self.root.rglob("*.py")) if "__pycache__" not in path.parts]
        self.modules = [Module(self, path) for path in paths]
        self.compiled = sorted(path for end in ("pyx", "pxd", "h") for path in self.root.rglob(f"*.{end}"))
        self.beside = [Path(path) for path in beside]
        self.by_name = {module.name: module for module in self.modules}

    def arrows(self, module):
        """Yield (module of the package, line) for each that *module* imports; "__init__" is the package itself."""
        for found in module.imports:
            own = module.own(found)
            if own is None:
                continue
            whole = f"{own}.{found.name}".lstrip(".") if found.name else own
            yield (whole if self.has_module(whole) else own or "__init__"), found.line

    def has_module(self, name):
        """Return whether a file of Python or Cython has this *name*."""
        return name in self.by_name or (self.root / f"{name.replace('.', '/')}.pyx").exists()

    def folder_of(self, name):
        first = name.partition(".")[0]
        return first if (self.root / first).is_dir() else "root"


def at_run_time(node):
    """Yield the nodes that run, without what is there for type checkers only."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from at_run_time(child)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which no import is in
            yield from at_run_time(child)


def imported(node):
    if isinstance(node, ast.Import):
        return [Import(alias.name, None, node.lineno) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [Import("." * node.level + (node.module or ""), alias.name, node.lineno) for alias in node.names]
    return []


# -- who imports whom -------------------------------------------------------------------------------------------------


def imports_go_down(tree):
    """Every folder imports what its row of the table says, and imports are absolute."""
    for module in tree.modules:
        if module.folder != "root" and module.folder not in MAY_IMPORT:
            yield f"{module.file}: the house has no folder {module.folder}"
            continue
        yield from (
            f"{module.file}:{i.line} imports {i.module}: relative" for i in module.imports if i.module[0] == "."
        )
        if module.folder == "root" and module.name in FACADES:
            continue
        for name, line in tree.arrows(module):
            if not may_import(tree, module, name):
                yield f"{module.file}:{line} imports {name}"


def may_import(tree, module, name):
    folder = tree.folder_of(name)
    if module.name == COMMAND:
        return folder == "cli"
    if folder == "root" and name in (*FACADES, COMMAND):
        return name == "__init__" and module.folder in ("cli", "testing")
    allowed = MAY_IMPORT[module.folder]
    if module.folder == "root":
        return name in allowed
    return "" in allowed or folder in (module.folder, *allowed) or any(within(name, each) for each in allowed)


def within(name, above):
    return name == above or name.startswith(f"{above}.")


def no_circles_of_files(tree):
    """No file needs itself through others. The package's own names are no file's to import."""
    graph = {module.name: {name for name, _ in tree.arrows(module)} for module in tree.modules}
    yield from circles({name: to - {name} for name, to in graph.items() if name != "__init__"})


def no_circles_of_folders(tree):
    """No folder needs itself through others; folders in folders count by themselves."""
    graph = {}
    for module in tree.modules:
        if module.folder != "root":
            here = folder_path(tree, module.name)
            graph.setdefault(here, set()).update(folder_path(tree, name) for name, _ in tree.arrows(module))
    yield from circles({here: {to for to in found if not related(to, here)} for here, found in graph.items()})


def folder_path(tree, name):
    if (tree.root / name.replace(".", "/")).is_dir():
        return name
    return name.rpartition(".")[0] or "root"


def related(a, b):
    return within(a, b) or within(b, a)


def circles(graph):
    """Yield a text for each set of nodes that can reach each other."""
    reach = {node: reachable(graph, node) for node in graph}
    seen = set()
    for node in sorted(graph):
        ring = {other for other in reach[node] if node in reach.get(other, ())}
        if node in ring and node not in seen:
            seen |= ring
            yield f"circle of {', '.join(sorted(ring))}"


def reachable(graph, start):
    found, ahead = set(), [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - found
        found |= new
        ahead.extend(new)
    return found


def hooks_are_few_and_known(tree):
    """A hook is an arrow up: there are few, each is in the table, and only the folders named there use it."""
    if len(HOOKS) > MOST_HOOKS:
        yield f"{len(HOOKS)} hooks; at most {MOST_HOOKS}"
    for module in tree.modules:
        for kind, name, line in hook_uses(module, tree.package):
            at = f"{module.file}:{line}"
            if name not in HOOKS:
                yield f"{at}: the hook {name} is not in the table"
            elif kind == "provides" and module.folder != HOOKS[name].provided_by:
                yield f"{at} provides the hook {name}; that is for {HOOKS[name].provided_by}"
            elif kind == "calls" and module.folder not in HOOKS[name].called_by:
                yield f"{at} calls the hook {name}; that is for {', '.join(HOOKS[name].called_by)}"


def hook_uses(module, package):
    """Yield ("provides" or "calls", name, line) for each use of ``_hooks``, by a name in quotes or by an attribute."""
    if module.name == "_hooks":
        return
    taken = {i.name for i in module.imports if i.module == f"{package}._hooks"}
    for node in module.nodes:
        of_hooks = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_hooks"
        if of_hooks and node.attr not in ("provides", "call"):
            yield "provides" if isinstance(node.ctx, ast.Store) else "calls", node.attr, node.lineno
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            known = (isinstance(node.func, ast.Name) and name in taken) or ast.unparse(node.func).startswith("_hooks.")
            if known and name in ("provides", "call"):
                first = node.args[0] if node.args else None
                text = first.value if isinstance(first, ast.Constant) else "whose name is not written out"
                yield "provides" if name == "provides" else "calls", text, node.lineno


# -- who does what ----------------------------------------------------------------------------------------------------


def only_ranks_know_mpi(tree):
    """Only one folder imports mpi4py, and only it creates communicators."""
    for module in tree.modules:
        for found in module.imports:
            if within(found.module, "mpi4py") and module.folder not in USES_MPI:
                yield f"{module.file}:{found.line} imports {found.module}"
        for node in module.nodes:
            creates = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CREATORS
            if creates and module.folder not in CREATES_COMMUNICATORS:
                yield f"{module.file}:{node.lineno} calls {node.func.attr}"
    for path in tree.compiled:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"mpi4py|\bMPI_[A-Z]|cimport numpy", line):
                yield f"{path.relative_to(tree.root)}:{number}: {line.strip()}"


def nothing_is_pickled(tree):
    """Bytes of another rank, or of a file, never become objects of Python by themselves."""
    for module in tree.modules:
        if module.file == PICKLES:
            continue
        own = names_defined_in(module)
        yield from (
            f"{module.file}:{found.line} imports {found.module}"
            for found in module.imports
            if any(within(found.module, name) or within(f"{found.module}.{found.name}", name) for name in PICKLERS)
        )
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                yield f"{module.file}:{node.lineno} passes allow_pickle"
            method = getattr(node.func, "attr", "")
            if method in PICKLING and receiver(node.func.value) not in (*COMMUNICATORS, "self" * (method in own)):
                yield f"{module.file}:{node.lineno} calls {ast.unparse(node.func)}"
    for path in tree.compiled:
        if re.search(r"\bpickle\b(?!=)", re.sub(r"#.*", "", path.read_text())):
            yield f"{path.relative_to(tree.root)} pickles"


def receiver(node):
    """Return the last name of what a method is called on: c of ``a.b.c``, and of ``c()``."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def only_ranks_read_the_environment(tree):
    """Environment variables are read in one folder."""
    names = {"environ", "environb", "getenv", "putenv"}
    for module in tree.modules:
        if module.folder in READS_ENVIRONMENT or module.file in READS_ENVIRONMENT:
            continue
        yield from (f"{module.file}:{i.line} imports os.{i.name}" for i in module.imports if i.name in names)
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in names:
                yield f"{module.file}:{node.lineno} uses {ast.unparse(node)}"
    for path in tree.compiled:
        if re.search(r"\b(environ|getenv)\b", path.read_text()):
            yield f"{path.relative_to(tree.root)} reads the environment"


def only_one_file_chooses_the_way(tree):
    """Nobody but the file that chooses makes a way for the bytes, or asks for what it is chosen by."""
    ways = {name for module in tree.modules if module.file in WAYS for name in classes_in(module)}
    for module in tree.modules:
        if module.file == CHOOSES:
            continue
        own, defined = classes_in(module), names_defined_in(module)
        for node in module.nodes:
            if isinstance(node, ast.Call) and called_name(node) in ways - own:
                yield f"{module.file}:{node.lineno} makes a {called_name(node)}"
            if any(found.name in THRESHOLDS for found in imported(node)):
                yield f"{module.file}:{node.lineno} imports what a way is chosen by"
            asked = asked_name(node)
            if asked in DECISIONS and asked not in defined:
                yield f"{module.file}:{node.lineno} asks for {asked}"


def classes_in(module):
    return {node.name for node in module.nodes if isinstance(node, ast.ClassDef)}


def names_defined_in(module):
    """Return the names of functions and class attributes that a file defines."""
    functions = {node.name for node in module.nodes if isinstance(node, ast.FunctionDef)}
    fields = {getattr(node.target, "id", None) for node in module.nodes if isinstance(node, ast.AnnAssign)}
    lines = [line for node in module.nodes if isinstance(node, ast.ClassDef) for line in node.body]
    assigned = {getattr(each, "id", None) for line in lines if isinstance(line, ast.Assign) for each in line.targets}
    return functions | fields | assigned


def called_name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", None))


def asked_name(node):
    """Return the attribute that *node* asks for, by a dot or by getattr; NumPy's functions are others."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return None if ast.unparse(node.value) in ("np", "numpy") else node.attr
    if isinstance(node, ast.Call) and called_name(node) == "getattr" and len(node.args) > 1:
        return node.args[1].value if isinstance(node.args[1], ast.Constant) else None
    return None


def private_names_stay_private(tree):
    """No folder, and no program beside the package, reaches the private names of a module in another folder."""
    for module in tree.modules:
        for name, line in private_uses(tree, module.ast):
            if tree.folder_of(name) != module.folder:
                yield f"{module.file}:{line} reaches {name}"
    for path in tree.beside:
        if path.suffix == ".py":
            uses = private_uses(tree, ast.parse(path.read_text()))
            yield from (f"{path.name}:{line} reaches {name}" for name, line in uses)


def private_uses(tree, parsed):
    """Yield the private names of the package's modules that are imported, or reached by a dot; not private modules."""
    aliases = {}
    for node in ast.walk(parsed):
        for found in imported(node):
            if not within(found.module, tree.package):
                continue
            own = found.module.removeprefix(tree.package).lstrip(".")
            name = f"{own}.{found.name}".lstrip(".") if found.name else own
            aliases[found.name or found.module] = name
            if found.name and is_private(found.name) and not tree.has_module(name):
                yield name, node.lineno
    for node in ast.walk(parsed):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in aliases:
            yield f"{aliases[ast.unparse(node.value)]}.{node.attr}", node.lineno


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def nothing_is_freed_by_the_garbage_collector(tree):
    """No ``__del__`` and no finalizer: what MPI frees, all ranks free together."""
    for module in tree.modules:
        for node in module.nodes:
            if getattr(node, "name", None) == "__del__" or getattr(node, "attr", None) == "finalize":
                yield f"{module.file}:{node.lineno}"


# -- sizes ------------------------------------------------------------------------------------------------------------


def files_are_short(tree):
    """A file has at most so many lines of code, compiled ones too; the proofs at its top do not count."""
    for module in tree.modules:
        count = len(module.code_lines)
        if count > MOST_CODE_LINES:
            yield f"{module.file} has {count} code lines; at most {MOST_CODE_LINES}"
    for path in tree.compiled:
        count = len(compiled_code_lines(path.read_text()))
        if count > MOST_CODE_LINES:
            yield f"{path.relative_to(tree.root)} has {count} code lines; at most {MOST_CODE_LINES}"


def functions_are_short(tree):
    """A function has at most so many lines of code, those of the functions in it included."""
    for module in tree.modules:
        for name, node, _ in functions_in(module.ast):
            count = sum(node.lineno <= line <= node.end_lineno for line in module.code_lines)
            if count > MOST_LINES_OF_A_FUNCTION:
                yield f"{module.file}:{node.lineno} {name} has {count} code lines; at most {MOST_LINES_OF_A_FUNCTION}"


FIXED_SIGNATURES = {
    "Variable.__init__": "initial, shape, dtype, trainable, name: the order of tf.Variable and of the seed's pages",
    "DVariable.__init__": "initial, layout, dtype, name, trainable: the order of tf.experimental.dtensor.DVariable",
    "all_to_all": "the seed's op: input, group_assignment, concat_dimension, split_dimension, split_count",
    "all_to_all_vjp": "the arguments of all_to_all",
    "plan_relayout": "shape, dtype, source, target, max_scratch_bytes, machine: recorded calls pass them by position",
    **dict.fromkeys(
        (
            *("convolve", "correlate", "convolve1d", "correlate1d", "gaussian_filter", "gaussian_filter1d"),
            *("uniform_filter", "uniform_filter1d", "median_filter", "minimum_filter", "minimum_filter1d"),
            *("maximum_filter", "maximum_filter1d", "percentile_filter", "rank_filter", "grey_dilation"),
            *("grey_erosion", "generic_filter"),
        ),
        "the order of scipy.ndimage",
    ),
}
"""Public functions that take more than five arguments by position, as callers already pass them."""


def functions_take_few_arguments(tree):
    """A function takes at most so many arguments by position, self and cls not counted."""
    for module in tree.modules:
        for name, node, in_class in functions_in(module.ast):
            count = len(node.args.posonlyargs) + len(node.args.args)
            static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
            count -= in_class and not static
            if count > MOST_POSITIONAL and name not in FIXED_SIGNATURES:
                at = f"{module.file}:{node.lineno}"
                yield f"{at} {name} takes {count} arguments by position; at most {MOST_POSITIONAL}"


def functions_in(node, prefix="", in_class=False):
    """Yield (name with that of its class, node, whether it is a method) for each function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child, in_class
            yield from functions_in(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions_in(child, f"{prefix}{child.name}.", in_class=True)
        else:
            yield from functions_in(child, prefix, in_class)


def code_lines(text, parsed):
    """Return the numbers of the lines with code: no blanks, comments and docstrings."""
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for text_node in lone_texts(parsed):
        lines.difference_update(range(text_node.lineno, text_node.end_lineno + 1))
    return lines


def lone_texts(parsed):
    """Yield the texts that stand by themselves: docstrings, also those below constants."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def compiled_code_lines(text):
    """Return the lines of code of Cython or C."""
    text = re.sub(r'("""|\'\'\')(.*?)\1', "", text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(("# ", "//"))]


def any_is_rare(tree):
    """``Any`` says nothing: it stands for at most so many types in the whole package."""
    having = [module for module in tree.modules if "Any" in module.text]
    counts = {module.file: sum(name == "Any" for name, _ in names_in(module.text)) for module in having}
    total = sum(counts.values())
    if total > MOST_ANY:
        most = sorted(counts, key=counts.__getitem__, reverse=True)[:10]
        yield f"{total} times Any; at most {MOST_ANY}. Most: {', '.join(f'{file} {counts[file]}' for file in most)}"


# -- words ------------------------------------------------------------------------------------------------------------

BANNED_NAMES = {
    "place": "position (in a group), location (of a rank in a mesh)",
    "places": "positions, locations",
    "part": "round, block, tensor of an exchange",
    "parts": "rounds, blocks, tensors of an exchange",
    "meet": "rendezvous",
    "meeting": "rendezvous",
    "meetings": "rendezvous",
    "partner": "aggregator",
    "partners": "aggregators",
    "mate": "local peer",
    "mates": "local peers",
    "room": "buffer, free space",
    "rooms": "buffers",
    "divided": "sharded, cut",
    "crowded": "oversubscribed",
    "started": "nonblocking",
    "chain": "call digest",
    "chained": "in the call digest",
    "far": "off_node",
    "near": "on_node",
}
"""Words that no name may have as one of its parts."""

BANNED_PROSE = {
    r"places?": "position (in a group), location (of a rank in a mesh)",
    r"meets?|meetings?": "rendezvous; boxes overlap",
    r"partners?": "aggregator",
    r"mates?": "local peer",
    r"rooms?": "buffer, free space",
    r"divided": "sharded, cut",
    r"crowded": "oversubscribed",
    r"chain(?:s|ed)?": "call digest",
    r"far|near": "off node, on node",
    r"bounds? on scratch": "scratch limit",
    r"the least possible": "minimum",
    r"started (?:relayout|move|call)s?": "nonblocking",
    r"wait seconds|`+wait`+ seconds": "latency",
    r"(?:array|tensor|layout|axes|shape)s? of rank": "number of axes, ndim",
    r"(?:has|have) ranks? \d|rank of (?:an?|the) (?:array|tensor|layout)": "number of axes, ndim",
}
"""Words and phrases, as regular expressions, that no comment, docstring, message or page may have."""

ALLOWED_NAMES = {
    "in_place": ((), "the field's word"),
    "_in_place": ((), "the field's word"),
    "InPlace": ((), "the field's word"),
    "parts": (("training", "mpi_examples"), "Module.parts is public: subclasses override it"),
}
"""Names that have such a word for a reason: the folders in which they may, or none for any folder, and the reason."""

ALLOWED_PROSE = {
    r"in[- ]place": "the field's word",
    r"(?:so|as|by|how|thus) far|far (?:more|less|fewer|larger|smaller)": "no distance between nodes",
    r"(?:be|is|are|was|were|when|and|not) divided (?:evenly )?by|divided evenly": "arithmetic",
    r"not meeting requirements|must have rank 2": "messages of the seed systems",
}
"""Uses of these words in their ordinary sense; a regular expression and the reason."""


def words_are_those_of_the_field(tree):
    """One word, one meaning: what is on the list is in no name, comment, docstring, message or page."""
    for module in tree.modules:
        yield from (f"{module.file}:{line} {found}" for line, found in words_in_python(module.text, module.folder))
    for path in [*tree.compiled, *tree.beside]:
        name = path.relative_to(tree.root) if path.is_relative_to(tree.root) else path.name
        text = path.read_text()
        found = words_in_python(text, path.parent.name) if path.suffix == ".py" else words_in_prose(text)
        yield from (f"{name}:{line} {each}" for line, each in found)
        if path.suffix in (".pyx", ".pxd", ".h"):
            names = (
                (m.group(), 1 + text.count("\n", 0, m.start())) for m in re.finditer(r"[A-Za-z_]\w*", code_of(text))
            )
            yield from (f"{name}:{line} {each}" for line, each in banned_names(names))


def code_of(text):
    """Return Cython or C with comments and texts blanked, line by line as it is."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731 - a small helper of one line
    return re.sub(r'""".*?"""|/\*.*?\*/|//[^\n]*|(?<![\'"])#[^\n]*|"[^"\n]*"|\'[^\'\n]*\'', blank, text, flags=re.S)


def words_in_python(text, folder=None):
    names = names_in(text)
    if re.search(r"from itertools import .*\bchain\b", text):
        names = (each for each in names if each[0] != "chain")
    yield from banned_names(names, folder)
    for prose, line in prose_in(text):
        yield from ((line + offset, found) for offset, found in words_in_prose(prose, first=0))


def banned_names(names, folder=None):
    for name, line in names:
        if name in ALLOWED_NAMES and (folder in ALLOWED_NAMES[name][0] or not ALLOWED_NAMES[name][0]):
            continue
        for word in words_of_name(name):
            if word in BANNED_NAMES:
                yield line, f"{name}: not {word}, but {BANNED_NAMES[word]}"


def words_of_name(name):
    """Return the words of a name in snake or camel case.

    >>> words_of_name("_placeOf_rank2"), words_of_name("AllToAll")
    (['place', 'of', 'rank', '2'], ['all', 'to', 'all'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def words_in_prose(text, first=1):
    """Yield (line, what is wrong) for each banned word of a text."""
    blank = lambda match: "\0" * len(match.group())  # noqa: E731 - a small helper of one line
    for allowed in ALLOWED_PROSE:
        text = re.sub(rf"(?i)\b(?:{allowed.replace(' ', chr(92) + 's+')})\b", blank, text)
    for banned, instead in BANNED_PROSE.items():
        for match in re.finditer(rf"(?i)(?<![\w`.])(?:{banned.replace(' ', chr(92) + 's+')})(?![\w(=])", text):
            yield first + text.count("\n", 0, match.start()), f"not {match.group()!r}, but {instead}"


@lru_cache(maxsize=1)  # names and prose are asked for one after the other
def tokens_of(text):
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def names_in(text):
    """Yield (name, line) for the names in Python code."""
    for token in tokens_of(text):
        if token.type == tokenize.NAME:
            yield token.string, token.start[0]


def prose_in(text):
    """Yield (text, line) for the comments, docstrings and messages in Python code; what f-strings insert is no prose.

    Comments on lines that follow each other are one text.
    """
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)
    block, start, last = "", 0, -1
    for token in tokens_of(text):
        if token.type == tokenize.COMMENT:
            if token.start[0] == last + 1:
                block += "\n" + token.string.lstrip("# ")
            else:
                yield block, start
                block, start = token.string.lstrip("# "), token.start[0]
            last = token.start[0]
        elif token.type == tokenize.STRING or token.type == middle:
            yield re.sub(r"\{[^{}]*\}|\\[nt]", lambda m: "\0" * len(m.group()), token.string), token.start[0]
    yield block, start


def local_is_not_written(tree):
    """Docstrings say what is collective; everything else is local, which is not written."""
    for module in tree.modules:
        for node in lone_texts(module.ast):
            for match in re.finditer(r"(?<![\w`./*-])Local(?=[.;:,) ]|$)", node.value.value, flags=re.M):
                line = node.lineno + node.value.value.count("\n", 0, match.start())
                yield f"{module.file}:{line} says Local"


LAWS = (
    imports_go_down,
    no_circles_of_files,
    no_circles_of_folders,
    hooks_are_few_and_known,
    only_ranks_know_mpi,
    nothing_is_pickled,
    only_ranks_read_the_environment,
    only_one_file_chooses_the_way,
    private_names_stay_private,
    nothing_is_freed_by_the_garbage_collector,
    files_are_short,
    functions_are_short,
    functions_take_few_arguments,
    any_is_rare,
    words_are_those_of_the_field,
    local_is_not_written,
)
