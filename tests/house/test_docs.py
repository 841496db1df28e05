"""What the documentation says is so: its code, its links, its lists of names, its version."""

import doctest
import re

import pytest

import meshcomm as mc
from support.paths import DOCS, ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page, language):
    """Return the code blocks of *language* in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def test_program_of_the_readme_prints_what_it_shows():
    (program,), printed = blocks("README.md", "python"), []
    with mc.simulate(4) as world:
        world.run(lambda: exec(compile(program, "first.py", "exec"), {"print": printed.append}))
    assert blocks("README.md", "text")[-1].splitlines() == sorted(printed)


def test_readme_begins_with_the_program_and_is_short():
    lines = text("README.md").splitlines()
    assert blocks("README.md", "python")[0] in "\n".join(lines[:40])
    assert len(lines) <= 110


SESSIONS = [page for page in PAGES if blocks(page, "pycon")]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_sessions_run(page):
    test = doctest.DocTestParser().get_doctest("".join(blocks(page, "pycon")), {}, page.name, str(page), 0)
    assert test.examples
    report = []
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append).failed == 0, "".join(
        report
    )


def test_sessions_are_found():
    assert {page.stem for page in SESSIONS} >= {"concepts", "relayout", "layout_map", "logical_devices"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_session_is_left_out(page):
    in_blocks = sum(block.count(">>> ") for block in blocks(page, "pycon"))
    assert page.read_text(encoding="utf-8").count(">>> ") == in_blocks


PROGRAMS = [page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents and blocks(page, "python")]
RANKS = {"all_to_all.md": 2, "logical_devices.md": 8}
CODE_AND_OUTPUT = r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
ELSEWHERE = {"linear-algebra.md": "tests/mpi/test_scalapack.py runs it: ScaLAPACK needs an MPI"}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ELSEWHERE])
def test_pages_run_and_print_what_they_show(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    found = re.findall(CODE_AND_OUTPUT, text(DOCS / name), re.MULTILINE | re.DOTALL)
    if any("mc.simulate(" in code for code, _ in found):
        names = {}
        for code, printed in found:
            exec(compile(code, name, "exec"), names)
            assert capsys.readouterr().out == printed or not printed, code
    else:  # a page about ranks that are there
        program = compile("".join(code for code, _ in found), name, "exec")
        with mc.simulate(RANKS.get(name, 4)) as world:
            world.run(lambda: exec(program, {}))


FRAGMENTS = {
    "README.md": "tests/mpi/test_mpi_readme.py",
    "docs/faq.md": "tests/house/test_faq.py",
    "docs/tutorial.md": "tests/jobs/test_tutorial.py",
    "docs/coming-from/": "tests/jobs/test_coming_from.py",
}
"""Pages with blocks marked `py`, which do not run by themselves, and the tests that run these blocks."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_python_has_a_test(page):
    name = page.relative_to(ROOT).as_posix()
    assert not blocks(page, "python") or DOCS in page.parents or name == "README.md"
    if blocks(page, "py"):
        (test,) = (FRAGMENTS[its] for its in FRAGMENTS if name == its or (its.endswith("/") and name.startswith(its)))
        assert (ROOT / test).is_file()
    assert not re.search(r"^ *```(?!python\n|pycon\n|py\n)[Pp]y", text(page), re.MULTILINE), "another name of Python"


def test_the_tutorial_shows_what_it_prints():
    assert len(blocks("docs/tutorial.md", "text")) > 12


def test_every_public_name_has_its_line_in_the_api_page():
    listed = re.findall(r"^\| `(\w+)", text("docs/api.md"), re.MULTILINE)
    assert sorted(listed) == sorted(mc._home_of)


def test_public_names_exist_and_no_others_are_public():
    public = {name for name, value in vars(mc).items() if not name.startswith("_") and not _is_module(value)}
    assert public == set(mc._home_of)


def _is_module(value):
    return type(value).__name__ == "module"


def test_newest_version_of_the_changelog_is_this_one():
    versions = re.findall(r"^## \[(\d[^]]*)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == mc.__version__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in t]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


def test_links_are_found():
    assert sum(len(re.findall(r"\]\([^)]+\)", page.read_text(encoding="utf-8"))) for page in PAGES) > 20


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/reliability.md"])
def test_pages_name_tests_that_exist(page):
    paths = set(re.findall(r"`(tests/[\w/.]+)`", text(page)))
    assert len(paths) > 4
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["run", "test", "test-4", "check", "format", "asan", "bench", "soak", "fuzz"])
def test_make_targets_that_pages_name_exist(name):
    rule = re.sub(r"-\d+$", "-%", name)
    assert re.search(rf"^{rule}:", text("Makefile"), re.MULTILINE)


def test_environment_page_lists_the_variables_that_are_read():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "meshcomm").rglob("*.py"))
    read = set(re.findall(r"\"(MESHCOMM_\w+)\"", sources))
    assert len(read) > 3
    assert read == set(re.findall(r"^\| `(MESHCOMM_\w+)`", text("docs/environment.md"), re.MULTILINE))
