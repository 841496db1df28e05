"""The site of the documentation: its pages, its notebook and picture; built by Sphinx where that is installed."""

import doctest
import functools
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec
from urllib.parse import unquote

import pytest

import meshcomm as mc
from support.paths import DOCS, ROOT

BUILD = ROOT / "build"


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assemble = script(DOCS / "site" / "assemble.py")
api = script(DOCS / "site" / "api.py")
notebook = script(DOCS / "site" / "notebook.py")
pictures = [script(DOCS / "draw_layouts.py"), script(DOCS / "draw_layers.py")]
docstrings = script(DOCS / "site" / "docstrings.py")


@pytest.fixture(scope="module")
def assembled():
    return assemble.assembled()


def test_the_notebook_is_that_of_the_tutorial():
    page = notebook.PAGE.read_text("utf-8")
    assert notebook.NOTEBOOK.read_text("utf-8") == notebook.notebook(page), "run python docs/site/notebook.py"


def test_tables_of_names_are_those_of_the_sources():
    page = api.PAGE.read_text("utf-8")
    assert page == api.page(page), "run python docs/site/api.py"
    assert len(api.ROW.findall(page)) == len(re.findall(r"^\| `", page, re.MULTILINE)), "no row is skipped"
    page = api.NUMPY_PAGE.read_text("utf-8")
    assert page == api.numpy_page(page), "run python docs/site/api.py"
    assert doctest.testmod(api).failed == 0


def test_the_notebook_has_all_code_and_prose():
    page = "# Title\n\n```python\na = 1\n```\n\n```text\n1\n```\n\nMore.\n\n```py\nb\n```\n"
    cells = json.loads(notebook.notebook(page))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("markdown", "# Title"),
        ("code", "a = 1"),
        ("markdown", "More.\n\n```py\nb\n```"),
    ]


def test_the_pictures_are_those_of_layouts_and_sources():
    for drawing in pictures:
        assert drawing.PICTURE.read_text() == drawing.picture(), f"run python {drawing.__file__}"


ADDRESSES = {
    "[a](../concepts.md#plan)": "[a](../concepts.md#plan)",
    "[concepts.md](../concepts.md#plan)": "[](../concepts.md#plan)",
    "[`a`](../../mpi_examples/heat.py)": "[`a`](../examples/heat.md)",
    "[a](../../mpi_examples/)": "[a](../examples/index.md)",
    "[a](../../meshcomm/) b": "a b",
    "![a](../layers.svg)": "![a](../layers.svg)",
    "[a](../../CONTRIBUTING.md)": "[a](../contributing.md)",
    "[a](../../README.md)": "[a](../index.md)",
    "[a](#b) [c](https://d.e/f.md)": "[a](#b) [c](https://d.e/f.md)",
    "```\n[a](b.md)\n```\n": "```\n[a](b.md)\n```\n",
    "    [a](b.md)\n": "    [a](b.md)\n",
}


def test_links_get_addresses_of_the_site():
    page, known = "docs/decisions/0001-setuptools.md", assemble.addresses()
    assert {text: assemble.with_addresses(text, page, known) for text in ADDRESSES} == ADDRESSES


def test_a_link_to_nowhere_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"docs/fft\.md links to lost\.md#a, which does not exist"):
        assemble.with_addresses("[a](lost.md#a)", "docs/fft.md", assemble.addresses())


def test_the_home_page_lists_every_page(assembled):
    text = (DOCS / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[[^\]]*\]\(([^)\s#]+)\)", text, re.MULTILINE)
    assert [link for link, count in Counter(listed).items() if count > 1] == []
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", assembled["index.md"], re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^- \[([^\]]*)\]", text, re.MULTILINE)
    assert re.findall(r"^(.*) <\S+>$", "\n".join(trees), re.MULTILINE) == titles, "the sidebar has the index's titles"
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    below = {f"{path.parent.name}/{path.name}" for path in DOCS.glob("*/*.md") if path.parent.name != "decisions"}
    assert pages | below <= set(listed), "docs/index.md must list them"
    index = (DOCS / "decisions" / "index.md").read_text("utf-8")
    assert set(re.findall(r"\]\((\S+)\)", index)) == {path.name for path in DOCS.glob("decisions/0*.md")}


def test_every_public_name_has_a_reference(assembled):
    directives = re.findall(r"^\.\. auto\w+:: meshcomm\.(\w+)$", "\n".join(assembled.values()), re.MULTILINE)
    assert sorted(directives) == sorted(mc._home_of)


def parameters(name):
    """Return the parameters that the docstring of a public function names, or that function whose it says it has."""
    lines = (inspect.getdoc(functions()[name]) or "").splitlines()
    return [each.strip("*") for each in docstrings.section(docstrings.with_those_of(lines, name))[1]]


@functools.cache
def functions():
    """Return the public functions, classes and methods, by their full names."""
    modules = {f"meshcomm.{name}": importlib.import_module(f"meshcomm.{name}") for name in assemble.MODULES}
    found = {f"meshcomm.{name}": getattr(mc, name) for name in mc._home_of}
    for of, module in modules.items():
        own = [name for name in module.__all__ if getattr(module, name) is not getattr(mc, name, None)]
        found |= {f"{of}.{name}": getattr(module, name) for name in own}
    for name, value in [each for each in found.items() if inspect.isclass(each[1])]:
        bases = [base for base in value.__mro__ if base.__module__.startswith("meshcomm")]
        public = {each for base in bases for each in vars(base) if not each.startswith("_")}
        found |= {f"{name}.{each}": getattr(value, each) for each in sorted(public)}
    found = {name: value for name, value in found.items() if callable(value)}
    return {name: value for name, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def test_every_public_module_has_a_reference():
    files = [
        path for path in (ROOT / "meshcomm").glob("*.py") if not path.stem.startswith("_") and path.stem != "errors"
    ]
    needs_torch = {"torch"} if find_spec("torch") is None else set()
    assert {path.stem for path in files} - needs_torch <= set(assemble.MODULES)
    assert all(find_spec(f"meshcomm.{name}") for name in assemble.MODULES)


def taken(name):
    """Return the parameters of a public function, but for self."""
    return [each for each in inspect.signature(functions()[name]).parameters if each not in ("self", "cls")]


def test_docstrings_name_parameters_that_exist():
    named = {name: parameters(name) for name in functions()}
    assert sum(map(bool, named.values())) > 100
    assert [f"{name}: {each}" for name, names in named.items() if names for each in {*names} - {*taken(name)}] == []


OF_OTHERS = {
    "meshcomm.array_api.": "the array API standard has them, in the same words for all libraries",
    "meshcomm.random.Generator.": "NumPy's Generator has them, and the class says what layout= is",
    "meshcomm.Count.": "what a count hears from a rank is not for programs",
}


def test_a_function_with_more_than_three_parameters_lists_them():
    ours = [name for name, value in functions().items() if inspect.isroutine(value)]
    ours = [name for name in ours if len(taken(name)) > 3 and not name.startswith(tuple(OF_OTHERS))]
    assert [f"{name}: {each}" for name in ours for each in taken(name) if each not in parameters(name)] == []


def test_examples_of_the_extension_are_right():
    assert doctest.testmod(docstrings).failed == 0


# -- the built site ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The links and anchors of a page, and for each anchor of a definition the names of its parameters."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.parameters, self.outside = [], set(), {}, []
        self.definition, self.in_name, self.text = None, False, text
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source and "://" in source:
            self.outside.append(source)
        if tag == "dt" and given.get("id", "").startswith("meshcomm."):
            self.definition = given["id"]
            self.parameters.setdefault(self.definition, [])
        self.in_name = tag == "strong"

    def handle_data(self, data):
        if self.in_name and self.definition:
            self.parameters[self.definition].append(data.lstrip("*"))

    def handle_endtag(self, tag):
        self.in_name = False


def build(pages, site):
    """Build the site anew, from what Sphinx has read before if it did not change; every warning is an error."""
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([sys.executable, DOCS / "site" / "assemble.py", pages], check=True)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-c",
        DOCS / "site",
        "-d",
        BUILD / "doctrees",
    ]
    return subprocess.run([*command, pages, site], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site():
    """The pages of the built site, by their paths."""
    if find_spec("sphinx") is None:
        pytest.skip('make docs installs Sphinx, with pip install ".[docs]"')
    job = build(BUILD / "pages", BUILD / "site")
    assert job.returncode == 0, job.stderr
    folder = BUILD / "site"
    return {path.relative_to(folder).as_posix(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}


@pytest.mark.slow
def test_links_and_anchors_of_the_site_lead_somewhere(site):
    missing, folder = [], BUILD / "site"
    for name, page in site.items():
        for link in page.links:
            file, _, anchor = unquote(link).partition("#")
            if ":" in file:
                continue
            path = (folder / name).parent / file if file else folder / name
            target = site.get(path.resolve().relative_to(folder.resolve()).as_posix())
            if not path.exists() or (anchor and target is not None and anchor not in target.anchors):
                missing.append(f"{name}: {link}")
    assert missing == []
    assert sum(len(page.links) for page in site.values()) > 1000


@pytest.mark.slow
def test_the_site_needs_no_network(site):
    assert {name: page.outside for name, page in site.items() if page.outside} == {}


@pytest.mark.slow
def test_the_site_shows_every_parameter(site):
    shown = {name: set(found) for page in site.values() for name, found in page.parameters.items()}
    wanted = {name: parameters(name) for name in functions()}
    missing = [f"{name}: {each}" for name, names in wanted.items() for each in set(names) - shown.get(name, set())]
    assert missing == []
    assert sum(map(len, wanted.values())) > 200


@pytest.mark.slow
def test_lists_and_tables_are_not_lost(site):
    """Markdown that Sphinx read as a paragraph would show its marks."""
    lost = [name for name, page in site.items() if re.search(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\| )", page.text)]
    assert lost == []
