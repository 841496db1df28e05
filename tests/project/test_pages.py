"""What pages and docstrings say is so: code, links, lists and tables of names, parameters. And the site is whole."""

import doctest
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.ranks.recording import Listener
from meshcomm.numpy import protocols
from support import faq, side_by_side
from support.paths import DOCS, ROOT, script
from support.surface import FILE, called, is_collective, public

api, assemble, notebook, docstrings = (
    script(DOCS / "site" / f"{name}.py") for name in ("api", "assemble", "notebook", "docstrings")
)
PICTURES = [script(DOCS / "draw_layouts.py"), script(DOCS / "draw_layers.py")]
FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in FILES}


def prose(page):
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """Return the code blocks of *language* in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def rows(page):
    """Return what the first cell of each row in the tables of a page begins with, in backticks."""
    return re.findall(r"^\| `(\w+)", PAGES[page], re.MULTILINE)


# -- links, files, tables ---------------------------------------------------------------------------------------------


def test_links_files_and_make_targets_exist():
    links = [
        (page, target.partition("#")[0]) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    ]
    assert len(links) > 100
    links = [(page, target) for page, target in links if "://" not in target]
    assert [(page, target) for page, target in links if not ((ROOT / page).parent / target).exists()] == []
    text = "\n".join(PAGES.values())
    paths = set(re.findall(r"`((?:tests|meshcomm|docs|benchmarks)/[\w/.]+)`", text))
    paths |= set(re.findall(r"`((?:[\w.]+/)+\w+\.\w+|_\w+\.py)`", PAGES["docs/architecture.md"]))
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "meshcomm" / path).exists()] == []
    targets = set(re.findall(r"(?:`|^    )make ([a-z][\w-]*)", text, re.MULTILINE))
    assert len(targets) > 12
    rules = set(re.findall(r"^([a-z][\w-]*%?):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [each for each in targets if re.sub(r"-\d+$", "-%", each) not in rules] == []


def test_tables_have_no_empty_cells():
    tables = [(page, line) for page in PAGES for line in prose(page).splitlines() if line.startswith("|")]
    assert len(tables) > 500
    assert [each for each in tables if re.search(r"\|\s*\|", each[1])] == []


def test_the_home_page_lists_every_page():
    text, assembled = PAGES["docs/index.md"], assemble.assembled()
    listed = re.findall(r"^- \[[^\]]*\]\(([^)\s#]+)\)", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    below = {path.relative_to(DOCS).as_posix() for path in FILES if DOCS in path.parents}
    decisions = {page for page in below if page.startswith("decisions/")}
    assert below - decisions - {"index.md"} <= set(listed), "docs/index.md must list them"
    index = re.findall(r"\]\((\S+)\)", PAGES["docs/decisions/index.md"])
    assert {f"decisions/{page}" for page in index} == decisions - {"decisions/index.md"}
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", assembled["index.md"], re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^- \[([^\]]*)\]", text, re.MULTILINE)
    assert re.findall(r"^(.*) <\S+>$", "\n".join(trees), re.MULTILINE) == titles, "the sidebar has the index's titles"
    directives = re.findall(r"^\.\. auto\w+:: meshcomm\.(\w+)$", "\n".join(assembled.values()), re.MULTILINE)
    assert sorted(directives) == sorted(mc._module_of), "every public name has a reference"
    files = {path.stem for path in (ROOT / "meshcomm").glob("*.py") if path.stem[0] != "_" and path.stem != "errors"}
    assert files - ({"torch"} if find_spec("torch") is None else set()) <= set(assemble.MODULES)


# -- names ------------------------------------------------------------------------------------------------------------


def test_tables_of_names_are_those_of_the_sources():
    page = PAGES["docs/api.md"]
    assert page == api.page(page), "run python docs/site/api.py"
    assert sorted(rows("docs/api.md")) == sorted(mc._module_of)
    assert len(api.ROW.findall(page)) == len(mc._module_of), "no row is skipped"
    page = PAGES["docs/numpy.md"]
    assert page == api.numpy_page(page), "run python docs/site/api.py"
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "meshcomm").rglob("*.py"))
    read = set(re.findall(r"\"(MESHCOMM_\w+)\"", sources))
    assert read == {name for name in rows("docs/environment.md") if name.startswith("MESHCOMM_")}
    assert re.findall(r"^## \[(\d[^]]*)\]", PAGES["CHANGELOG.md"], re.MULTILINE)[0] == mc.__version__
    assert [doctest.testmod(module).failed for module in (api, docstrings)] == [0, 0]


DROPPED = """
    add_docstring add_newdoc add_newdoc_ufunc alltrue asfarray byte_bounds compare_chararrays cumproduct deprecate
    deprecate_with_doc disp fastCopyAndTranspose find_common_type get_array_wrap geterrobj in1d issctype issubclass_
    issubsctype lookfor mat maximum_sctype msort obj2sctype product recfromcsv recfromtxt round_ safe_eval sctype2char
    set_numeric_ops set_string_function seterrobj sometrue source trapz who t.itemset t.newbyteorder t.ptp t.tostring
"""
"""Names of NumPy 1 that NumPy 2 has dropped, as the page says."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_name_of_numpy_is_missing_without_a_word():
    """Of its functions, but for universal ones, which all take tensors, and of the methods of its arrays."""
    page, dropped = PAGES["docs/numpy.md"], set(DROPPED.split())
    not_there = dropped | set(re.findall(r"`([\w.]+)`", page.partition("## What takes no tensors")[2]))
    functions = [name for name in np.__all__ if callable(getattr(np, name)) and not name.startswith("_")]
    functions = [name for name in functions if not isinstance(getattr(np, name), type | np.ufunc)]
    taken = {name for name in functions if getattr(np, name) in protocols.FUNCTIONS}
    tables = api.numpy_tables(page)
    named = [name for row in api.functions_of_rows(tables) for name in row]
    assert sorted(name for name in named if hasattr(np, name)) == sorted(taken)  # each is in one row; NumPy drops some
    lines = [line for line in tables.splitlines() if re.match(r"\| (?!function \||-)", line)]
    assert len(lines) == len(api.functions_of_rows(tables)) > 50, "no row is skipped"
    assert [name for name in functions if name not in taken and name not in not_there] == []
    assert (taken & not_there) - {"histogram", "resize", *dropped} == set()  # two are recommended there
    methods = [name for name in dir(np.ndarray) if not name.startswith("_")]
    assert [n for n in methods if not hasattr(mc.DTensor, n) and f"t.{n}" not in not_there] == []
    assert [n for n in methods if hasattr(mc.DTensor, n) and f"t.{n}" in not_there - {"t.view", "t.base"}] == []


def test_the_notebook_and_the_pictures_are_up_to_date():
    assert notebook.NOTEBOOK.read_text("utf-8") == notebook.notebook(notebook.PAGE.read_text("utf-8"))
    page = "# Title\n\n```python\na = 1\n```\n\n```text\n1\n```\n\nMore.\n\n```py\nb\n```\n"
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook.notebook(page))["cells"]]
    assert cells == [("markdown", "# Title"), ("code", "a = 1"), ("markdown", "More.\n\n```py\nb\n```")]
    for drawing in PICTURES:
        assert drawing.PICTURE.read_text() == drawing.picture(), f"run python {drawing.__file__}"


# -- docstrings -------------------------------------------------------------------------------------------------------

HEARD = {f"Count.{name}" for name in vars(Listener) if not name.startswith("_") and callable(getattr(Listener, name))}
"""What a count hears from meshcomm: programs do not call these methods."""
WITHOUT = ("array_api.", "random.Generator.", "Count.")
"""Whose parameters others say, in the same words: the standard, NumPy's Generator."""


def parameters(name, value):
    """Return the parameters that a docstring names, or that of the function whose it says it has; and those it has."""
    lines = docstrings.with_those_of((inspect.getdoc(value) or "").splitlines(), f"meshcomm.{name}")
    named = [each.strip("*") for each in docstrings.section(lines)[1]]
    return named, [each for each in inspect.signature(value).parameters if each not in ("self", "cls")]


def test_docstrings_say_what_is_collective_and_which_parameters_there_are():
    found, functions = public(), called()
    said = [name for name, value in found.items() if callable(value) or isinstance(value, property)]
    assert [name for name in said if not inspect.getdoc(found[name])] == []
    assert sorted(filter(lambda name: is_collective(found[name]), found)) == json.loads(FILE.read_text())["collective"]
    ours = {name for name, value in functions.items() if inspect.isroutine(value)}
    shown = {n for n in ours if n.partition(".")[0] in [*mc.__all__, "gradients"] and callable(functions[n])}
    shown = {n for n in shown if "collections" not in str(getattr(functions[n], "__module__", ""))}
    assert {name for name in shown if ">>>" not in inspect.getdoc(functions[name])} == HEARD
    listed = {name: parameters(name, value) for name, value in functions.items()}
    assert sum(bool(named) for named, _ in listed.values()) > 100
    assert {name: both for name, both in listed.items() if both[0] and set(both[0]) - set(both[1])} == {}
    long = {name: both for name, both in listed.items() if name in ours and len(both[1]) > 3}
    assert {n: both for n, both in long.items() if not n.startswith(WITHOUT) and set(both[1]) - set(both[0])} == {}


def test_the_examples_of_methods():
    """doctest takes a class from the module that it names, and only methods that this file defines.

    A public class says that it is of ``meshcomm``, and another file has its methods.
    """
    runner, report, count = doctest.DocTestRunner(), [], 0
    classes = {name: value for name in mc.__all__ if inspect.isclass(value := getattr(mc, name))}
    for name, value in classes.items():
        for member, attribute in vars(value).items():
            if value.__module__ == "meshcomm" and inspect.isroutine(attribute) and ">>>" in (attribute.__doc__ or ""):
                of = f"{name}.{member}"
                test = doctest.DocTestParser().get_doctest(inspect.getdoc(attribute), dict(vars(mc)), of, None, None)
                runner.run(test, out=report.append)
                count += 1
    assert count > 100
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


# -- code of pages ----------------------------------------------------------------------------------------------------

FRAGMENTS = {
    "docs/faq.md": "tests/project/test_pages.py",
    "docs/linear-algebra.md": "tests/mpi/test_scalapack.py",
    "docs/notebook.md": "tests/jobs/test_notebook.py",
    "docs/one-import.md": "tests/jobs/test_numpy_scripts.py",
    "docs/coming-from/": "tests/jobs/test_coming_from.py",
    "docs/torch.md": "tests/adapters/test_torch.py",
}
"""Pages with blocks that do not run by themselves, marked `py` but for PyTorch's, and the tests that run them."""
RANKS = {"docs/all_to_all.md": 2, "docs/logical_devices.md": 8}
PROGRAMS = [page for page in PAGES if page.startswith("docs/") and page != "docs/torch.md" and blocks(page, "python")]


def test_every_block_of_python_has_a_test():
    assert [page for page in PAGES if blocks(page, "python") and not page.startswith(("docs/", "README.md"))] == []
    assert [page for page in PAGES if blocks(page, "py") and not page.startswith(tuple(FRAGMENTS))] == []
    assert [test for test in FRAGMENTS.values() if not (ROOT / test).is_file()] == []
    other_names = re.compile(r"^ *```(?!python\n|pycon\n|py\n)[Pp]y", re.MULTILINE)
    assert [page for page, text in PAGES.items() if other_names.search(text)] == []


@pytest.mark.parametrize("page", PROGRAMS)
def test_pages_run_and_print_what_they_show(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    code = r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
    found = re.findall(code, PAGES[page], re.MULTILINE | re.DOTALL)
    if any("mc.simulate(" in code for code, _ in found):
        names = {}
        for code, printed in found:
            exec(compile(code, page, "exec"), names)
            assert capsys.readouterr().out == printed or not printed, code
    else:  # a page about ranks that are there
        program = compile("".join(code for code, _ in found), page, "exec")
        with mc.simulate(RANKS.get(page, 4)) as world:
            world.run(lambda: exec(program, {}))


def test_sessions_run_and_none_is_left_out():
    sessions = {page: "".join(blocks(page, "pycon")) for page in PAGES}
    assert [page for page, text in PAGES.items() if text.count(">>> ") != sessions[page].count(">>> ")] == []
    runner, report = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    for page, session in sessions.items():
        test = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
        assert test.examples or not session
        runner.run(test, out=report.append)
    assert runner.tries > 20
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_programs_of_the_readme_print_what_they_show(monkeypatch, tmp_path):
    """They have eight lines at most. One makes a climate file, which a test of ours opens first."""
    monkeypatch.chdir(tmp_path)
    programs = blocks("README.md", "python")
    assert all(len(program.split("\n\n")[-1].splitlines()) + program.count("import") <= 10 for program in programs)
    one_import, layouts, climate = programs

    def ran(program):
        printed = []

        def run():
            names = {"print": printed.append}
            exec(compile(program, "README.md", "exec"), names)
            return names

        with mc.simulate(4) as world:
            names = world.run(run)[0]
        return sorted(printed), names

    x = np.linspace(0, 1, 1_000_000)
    assert ran(one_import)[0] == [f"{(np.sin(x) * x).sum():.3f}, from 250000 of 1000000 numbers here"] * 4
    assert ran(layouts)[0] == blocks("README.md", "text")[-1].splitlines()
    xarray, _ = pytest.importorskip("xarray"), pytest.importorskip("h5py")
    ours = importlib.import_module("meshcomm.xarray")
    time = np.arange("2000-01", "2003-01", dtype="M8[M]").astype("M8[ns]")
    axes = {"time": time, "lat": np.linspace(-75, 75, 6), "lon": np.arange(4) * 90.0}
    t = xarray.DataArray(np.random.default_rng(0).random((36, 6, 4)), axes, list(axes), "t")
    with mc.simulate(1) as world:
        world.run(ours.save, "climate.nc", t.to_dataset())
    assert ran(climate)[1]["anomalies"].shape == t.shape
    expected = t.groupby("time.month") - t.groupby("time.month").mean()
    with mc.simulate(1) as world:
        (written,) = world.run(lambda: ours.open("anomalies.nc", {"lat": "x"}).t.values)
    assert np.allclose(written, expected.values)


IN_JOBS = {  # tests/jobs/test_faq.py
    "The mesh needs more ranks than there are",
    "There is no MPI",
    "A rank waits for others that have ended",
}


def test_wrong_code_raises_what_the_faq_says():
    def raised(code):
        with mc.simulate(4) as world:
            try:
                world.run(lambda: exec(compile(faq.first_lines() + code, "faq.md", "exec"), {}))
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return "nothing is raised"

    sections = {section.title: section for section in faq.errors()}
    assert len(sections) >= 10
    assert set(sections) > IN_JOBS
    found = [faq.complaint(sections[title], raised(sections[title].code)) for title in sections.keys() - IN_JOBS]
    assert [wrong for wrong in found if wrong is not None] == []


def test_pages_of_other_systems_have_tasks_to_compare():
    pages = {Path(page).stem for page in PAGES if page.startswith("docs/coming-from/")} - {"index"}
    assert pages == set(side_by_side.SYSTEMS)
    for page in pages:
        tasks = [section for section in side_by_side.sections(page) if section.is_task]
        assert len(tasks) >= 2, page
        assert [task.title for task in tasks if not task.results] == [], page


# -- the site ---------------------------------------------------------------------------------------------------------

ADDRESSES = {
    "[a](../concepts.md#plan)": "[a](../concepts.md#plan)",
    "[concepts.md](../concepts.md#plan)": "[](../concepts.md#plan)",
    "[`a`](../../mpi_examples/heat.py)": "[`a`](../examples/heat.md)",
    "[a](../../mpi_examples/)": "[a](../examples/index.md)",
    "[a](../../meshcomm/) b": "a b",
    "![a](../layers.svg)": "![a](../layers.svg)",
    "[a](../../CONTRIBUTING.md) [a](../../README.md)": "[a](../contributing.md) [a](../index.md)",
    "[a](#b) [c](https://d.e/f.md)": "[a](#b) [c](https://d.e/f.md)",
    "```\n[a](b.md)\n```\n": "```\n[a](b.md)\n```\n",
    "    [a](b.md)\n": "    [a](b.md)\n",
}


def test_links_get_addresses_of_the_site():
    page, known = "docs/decisions/0001-setuptools.md", assemble.addresses()
    assert {text: assemble.with_addresses(text, page, known) for text in ADDRESSES} == ADDRESSES
    with pytest.raises(FileNotFoundError, match=r"docs/fft\.md links to lost\.md#a, which does not exist"):
        assemble.with_addresses("[a](lost.md#a)", "docs/fft.md", known)


class Page(HTMLParser):
    """The links and anchors of a page, and for each anchor of a definition the names of its parameters."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.parameters, self.outside = [], set(), {}, []
        self.definition, self.in_name, self.text = None, False, text
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.add(given.get("id"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source and "://" in source:
            self.outside.append(source)
        if tag == "dt" and given.get("id", "").startswith("meshcomm."):
            self.definition = given["id"].removeprefix("meshcomm.")
            self.parameters.setdefault(self.definition, set())
        self.in_name = tag == "strong"

    def handle_data(self, data):
        if self.in_name and self.definition:
            self.parameters[self.definition].add(data.lstrip("*"))

    def handle_endtag(self, tag):
        self.in_name = False


@pytest.mark.slow
def test_the_site_is_whole():
    """It is built anew, from what Sphinx has read before if it did not change; every warning is an error.

    Links lead somewhere, nothing comes over the network, every parameter is shown, and no list has become a paragraph.
    """
    if find_spec("sphinx") is None:
        pytest.skip('make docs installs Sphinx, with pip install ".[docs]"')
    build = ROOT / "build"
    folder, source = build / "site", DOCS / "site"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, source / "assemble.py", build / "pages"], check=True)
    options = ["-q", "-W", "--keep-going", "-c", source, "-d", build / "doctrees", build / "pages", folder]
    job = subprocess.run([sys.executable, "-m", "sphinx", *options], capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stderr
    site = {path.resolve(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}
    missing = []
    for path, page in site.items():
        for link in page.links:
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            lost = not target.exists() or (anchor and target in site and anchor not in site[target].anchors)
            missing += [f"{path}: {link}"] if ":" not in file and lost else []
    assert missing == []
    assert sum(len(page.links) for page in site.values()) > 1000
    assert {path: page.outside for path, page in site.items() if page.outside} == {}
    assert [path for path, page in site.items() if re.search(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\| )", page.text)] == []
    shown = {name: found for page in site.values() for name, found in page.parameters.items()}
    wanted = {name: parameters(name, value)[0] for name, value in called().items()}
    assert sum(map(len, wanted.values())) > 200
    assert {name: named for name, named in wanted.items() if set(named) - shown.get(name, set())} == {}
