"""Assemble the sources of the site in a folder that Sphinx reads: python docs/site/assemble.py FOLDER.

The pages of the repository are plain Markdown with links from file to file, as GitHub shows them. Here links get the
addresses of the site. These pages are added:

- for each example its program;
- for each section of docs/api.md the reference of its names, which Sphinx takes from the docstrings;
- for each public module a reference of its names;
- a list of the examples.

docs/index.md says in which order the pages come: its lists are the navigation. A page that no list has is an error.
"""

import ast
import importlib.util
import inspect
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import meshcomm

ROOT = Path(__file__).parents[2]
MODULES = (
    "fft",
    "linalg",
    "linalg.scalapack",
    "random",
    "ndimage",
    "gradients",
    "logical_devices",
    "array_api",
    "xarray",
)
"""The public modules of the package, besides the package itself."""
if importlib.util.find_spec("torch"):
    MODULES += ("torch",)  # its reference is made of the docstrings, so it needs PyTorch

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+", re.MULTILINE | re.DOTALL)


def assembled(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each page of the site, by its path there."""
    where = addresses(root)
    pages = {where[path]: (root / path).read_text("utf-8") for path in where if is_page(path)}
    for path in where:
        if path.endswith(".py"):
            pages[where[path]] = example(root / path)
    pages |= {f"reference/{module}.rst": reference_of_module(module) for module in MODULES}
    for title, names in sections(pages["api.md"]):
        pages[f"reference/{slug(title)}.rst"] = reference(title, [f"meshcomm.{name}" for name in names])
    pages["examples/index.md"] = list_of("Examples", sorted(page for page in pages if page.startswith("examples/")))
    for path, address in where.items():
        if is_page(path):
            pages[address] = with_addresses(pages[address], path, where, root)
    pages["decisions/index.md"] += tree(
        None, dict.fromkeys(re.findall(r"\]\((\d+\S+)\)", pages["decisions/index.md"]))
    )
    pages["index.md"] += "".join(tree(captioned, links) for captioned, links in lists_of(pages["index.md"]))
    references = [f"reference/{slug(title)}.rst" for title, _ in sections(pages["api.md"])]
    pages["api.md"] = with_references(pages["api.md"])
    pages["api.md"] += tree(None, dict.fromkeys(references + [f"reference/{module}.rst" for module in MODULES]))
    return pages


def addresses(root: Path = ROOT) -> dict[str, str]:
    """Return where the site has each file and folder of the repository that it has, by the path in the repository."""
    found = {"README.md": "index.md", "docs": "index.md", "docs/decisions": "decisions/index.md"}
    found["mpi_examples"] = "examples/index.md"
    found |= {path.name: path.name.lower() for path in sorted(root.glob("*.md")) if path.name != "README.md"}
    for path in sorted((root / "docs").rglob("*")):
        if path.suffix in (".md", ".svg", ".png", ".ipynb"):
            found[path.relative_to(root).as_posix()] = path.relative_to(root / "docs").as_posix()
    for path in sorted((root / "mpi_examples").glob("*.py")):
        found[f"mpi_examples/{path.name}"] = f"examples/{path.stem}.md"
    return found


def is_page(path: str) -> bool:
    """Return whether this path in the repository is a page that the site shows; README.md is for GitHub and PyPI."""
    return path.endswith(".md") and path != "README.md"


# -- links ------------------------------------------------------------------------------------------------------------


def with_addresses(text: str, path: str, where: dict[str, str], root: Path = ROOT) -> str:
    """Return a page with the addresses of the site in its links. Links to files that the site lacks become text.

    A link that shows the name of a page gets no text of its own: Sphinx shows the title that it leads to.
    """

    def new(match: re.Match[str]) -> str:
        image, shown, target = match.groups()
        file, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not file:
            return match.group()
        repository = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if not (root / repository).exists():
            raise FileNotFoundError(f"{path} links to {target}, which does not exist")
        if repository not in where:
            return shown
        if shown.strip("`").endswith(".md") and where[repository].endswith(".md"):
            shown = ""
        address = posixpath.relpath(where[repository], posixpath.dirname(where[path]) or ".")
        return f"{image}[{shown}]({address}{'#' * bool(anchor)}{anchor})"

    return outside_code(text, lambda prose: LINK.sub(new, prose))


def outside_code(text: str, change) -> str:  # type: ignore[no-untyped-def]
    """Return *text* with its prose changed, and its blocks of code as they are."""
    pieces, end = [], 0
    for block in CODE.finditer(text):
        pieces += [change(text[end : block.start()]), block.group()]
        end = block.end()
    return "".join([*pieces, change(text[end:])])


# -- navigation -------------------------------------------------------------------------------------------------------


def lists_of(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the title of each section that has a list of links, and where they lead, with the texts that they show.

    >>> list(lists_of("# All\\n## Learn\\n\\n- [Tutorial](tutorial.md): an hour\\n- [Words](glossary.md)\\n"))
    [('Learn', {'tutorial.md': 'Tutorial', 'glossary.md': 'Words'})]
    """
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if links := re.findall(r"^- \[([^\]]*)\]\(([^)\s#]+)\)", section, re.MULTILINE):
            yield section.partition("\n")[0], {page: shown for shown, page in links}


def tree(caption: str | None, pages: Mapping[str, str | None]) -> str:
    """Return a table of contents for the navigation, which the page itself does not show.

    It shows these texts for the pages; None stands for the title of a page.
    """
    options = [":hidden:", f":caption: {caption}"] if caption else [":hidden:"]
    named = [(page.rpartition(".")[0], shown) for page, shown in pages.items()]
    lines = [*options, "", *(f"{shown} <{page}>" if shown else page for page, shown in named)]
    return "\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def list_of(title: str, pages: list[str]) -> str:
    """Return a page with the titles of other pages in its folder."""
    return f"# {title}\n\n```{{toctree}}\n" + "\n".join(Path(page).stem for page in pages) + "\n```\n"


# -- examples ---------------------------------------------------------------------------------------------------------


def example(path: Path) -> str:
    """Return the page of a program: its docstring, then its code."""
    text = path.read_text("utf-8")
    about = ast.get_docstring(ast.parse(text)) or ""
    program = text.split('"""', 2)[2].lstrip("\n")
    return f"# {path.name}\n\n{about.replace('``', '`')}\n\n```python\n{program}```\n"


# -- reference --------------------------------------------------------------------------------------------------------


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each section of docs/api.md that has a table of names, and the names."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if names := re.findall(r"^\| `(\w+)", section, re.MULTILINE):
            yield section.partition("\n")[0], names


def slug(title: str) -> str:
    """Return a title as a name for a file.

    >>> slug("Placement, as in tf.experimental.dtensor")
    'placement-as-in-tf-experimental-dtensor'
    """
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def with_references(text: str) -> str:
    """Return docs/api.md with a link to the reference from each name in its tables."""
    return re.sub(r"^\| `((\w+)[^`]*)`", r"| {py:obj}`\1 <meshcomm.\2>`", text, flags=re.MULTILINE)


def reference(title: str, names: list[str], about: str = "") -> str:
    """Return a page with the signatures and docstrings of these names, in reStructuredText."""
    return "\n".join([title, "=" * len(title), "", about, "", *map(directive, names)])


def reference_of_module(name: str) -> str:
    """Return the reference of a public module; names that are NumPy's own are only listed."""
    module = importlib.import_module(f"meshcomm.{name}")
    public = [each for each in module.__all__ if not inspect.ismodule(getattr(module, each))]
    known = [name for name in public if name in meshcomm._module_of]
    ours = [name for name in known if getattr(module, name) is getattr(meshcomm, name)]
    own = [each for each in public if getattr(getattr(module, each), "__module__", "").startswith("meshcomm")]
    own = [each for each in own if each not in ours]
    others = [each for each in public if each not in ours + own and not each.startswith("_")]
    about = re.sub(r":\w+:`([\w.]+)`", r"``\1``", inspect.cleandoc(module.__doc__ or ""))
    about = re.sub(r"\bdocs/([\w-]+)\.md\b", r":doc:`/\1`", about)
    for owner, names in (("meshcomm", ours), ("NumPy", others)):
        if names:
            about += f"\n\nThese names are those of {owner} itself: {', '.join(f'``{each}``' for each in names)}."
    head = f".. py:module:: meshcomm.{name}\n\n{about}"
    return reference(f"meshcomm.{name}", [f"meshcomm.{name}.{each}" for each in own], head)


def directive(name: str) -> str:
    """Return the directive of Sphinx for a public name."""
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    if not inspect.isclass(value):
        return f".. auto{'function' if callable(value) else 'data'}:: {name}\n"
    if issubclass(value, Exception):
        return f".. autoexception:: {name}\n"
    bases = ", ".join(base.__name__ for base in value.__mro__ if not base.__module__.startswith("meshcomm"))
    return f".. autoclass:: {name}\n   :members:\n   :inherited-members: {bases}\n"


def main(folder: Path) -> None:
    """Write the pages; those that did not change stay as they are, so that Sphinx does not read them again."""
    pages = {name: text.encode() for name, text in assembled().items()}
    for path, address in addresses().items():
        if not address.endswith((".md", ".rst")):
            pages[address] = (ROOT / path).read_bytes()
    for old in [path for path in folder.rglob("*") if path.is_file()]:
        if old.relative_to(folder).as_posix() not in pages:
            os.remove(old)
    for name, data in pages.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
