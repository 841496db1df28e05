"""What the documentation says is so: its code, its links, its lists of names, its version."""

import doctest
import importlib
import re

import numpy as np
import pytest

import meshcomm as mc
from support.paths import DOCS, ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page):
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """Return the code blocks of *language* in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def ran(program):
    """Return the lines that a program of the README prints on 4 ranks, and its variables on one of them."""
    printed = []

    def run():
        names = {"print": printed.append}
        exec(compile(program, "README.md", "exec"), names)
        return names

    with mc.simulate(4) as world:
        names = world.run(run)[0]
    return sorted(printed), names


def test_programs_of_the_readme_print_what_they_show():
    one_import, first, _ = blocks("README.md", "python")
    x = np.linspace(0, 1, 1_000_000)
    assert ran(one_import)[0] == [f"{(np.sin(x) * x).sum():.3f}, from 250000 of 1000000 numbers here"] * 4
    assert ran(first)[0] == blocks("README.md", "text")[-1].splitlines()


def test_the_climate_file_of_the_readme(monkeypatch, tmp_path):
    xarray, _ = pytest.importorskip("xarray"), pytest.importorskip("h5py")
    ours = importlib.import_module("meshcomm.xarray")
    monkeypatch.chdir(tmp_path)
    time = np.arange("2000-01", "2003-01", dtype="M8[M]").astype("M8[ns]")
    axes = {"time": time, "lat": np.linspace(-75, 75, 6), "lon": np.arange(4) * 90.0}
    t = xarray.DataArray(np.random.default_rng(0).random((36, 6, 4)), axes, list(axes), "t")
    with mc.simulate(1) as world:
        world.run(ours.save, "climate.nc", t.to_dataset())
    found = ran(blocks("README.md", "python")[2])[1]["anomalies"]
    expected = t.groupby("time.month") - t.groupby("time.month").mean()
    with mc.simulate(1) as world:
        (written,) = world.run(lambda: ours.open("anomalies.nc", {"lat": "x"}).t.values)
    assert found.shape == written.shape
    assert np.allclose(written, expected.values)


def test_the_readme_is_short():
    lines, programs = text("README.md").splitlines(), blocks("README.md", "python")
    assert len(lines) <= 110
    assert programs[-1] in "\n".join(lines[:60])
    assert all(len([line for line in program.splitlines() if line]) <= 8 for program in programs)


def test_sessions_run_and_none_is_left_out():
    sessions = {page: "".join(blocks(page, "pycon")) for page in PAGES}
    assert {page.stem for page in PAGES if sessions[page]} >= {"concepts", "relayout", "layout_map", "logical_devices"}
    assert [page for page in PAGES if text(page).count(">>> ") != sessions[page].count(">>> ")] == []
    runner, report = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    for page, session in sessions.items():
        test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
        assert test.examples or not session
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


PROGRAMS = [page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents and blocks(page, "python")]
RANKS = {"all_to_all.md": 2, "logical_devices.md": 8}
CODE_AND_OUTPUT = r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
ELSEWHERE = {
    "torch.md": "tests/adapters/test_torch.py runs it, if PyTorch is there",
}


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
    "docs/faq.md": "tests/project/test_faq.py",
    "docs/linear-algebra.md": "tests/mpi/test_scalapack.py",
    "docs/one-import.md": "tests/jobs/test_numpy_scripts.py",
    "docs/coming-from/": "tests/jobs/test_coming_from.py",
}
"""Pages with blocks marked `py`, which do not run by themselves, and the tests that run these blocks."""


def test_every_block_of_python_has_a_test():
    names = [page.relative_to(ROOT).as_posix() for page in PAGES]
    assert [name for name in names if blocks(name, "python") and not name.startswith(("docs/", "README.md"))] == []
    assert [name for name in names if blocks(name, "py") and not name.startswith(tuple(FRAGMENTS))] == []
    assert [test for test in FRAGMENTS.values() if not (ROOT / test).is_file()] == []
    other_names = re.compile(r"^ *```(?!python\n|pycon\n|py\n)[Pp]y", re.MULTILINE)
    assert [name for name in names if other_names.search(text(name))] == []


def test_the_tutorial_shows_what_it_prints():
    assert len(blocks("docs/tutorial.md", "text")) > 9


def test_every_public_name_has_its_line_in_the_api_page():
    listed = re.findall(r"^\| `(\w+)", text("docs/api.md"), re.MULTILINE)
    assert sorted(listed) == sorted(mc._home_of)


def test_newest_version_of_the_changelog_is_this_one():
    versions = re.findall(r"^## \[(\d[^]]*)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == mc.__version__


def test_links_lead_somewhere():
    links = []
    for page in PAGES:
        links += [(page, target.partition("#")[0]) for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    assert len(links) > 100
    files = [(page, target) for page, target in links if "://" not in target]
    assert [(page.name, target) for page, target in files if not (page.parent / target).exists()] == []


def test_tables_have_no_empty_cells():
    tables = [(page.name, line) for page in PAGES for line in prose(page).splitlines() if line.startswith("|")]
    assert len(tables) > 500
    assert [each for each in tables if re.search(r"\|\s*\|", each[1])] == []


def test_pages_name_files_and_make_targets_that_exist():
    pages = "\n".join(map(text, PAGES))
    paths = set(re.findall(r"`((?:tests|meshcomm|docs|benchmarks)/[\w/.]+)`", pages))
    paths |= set(re.findall(r"`((?:[\w.]+/)+\w+\.\w+|_\w+\.py)`", text("docs/architecture.md")))
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "meshcomm" / path).exists()] == []
    targets = set(re.findall(r"(?:`|^    )make ([a-z][\w-]*)", pages, re.MULTILINE))
    assert len(targets) > 12
    rules = set(re.findall(r"^([a-z][\w-]*%?):", text("Makefile"), re.MULTILINE))
    assert [each for each in targets if re.sub(r"-\d+$", "-%", each) not in rules] == []


def test_environment_page_lists_the_variables_that_are_read():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "meshcomm").rglob("*.py"))
    read = set(re.findall(r"\"(MESHCOMM_\w+)\"", sources))
    assert len(read) > 3
    assert read == set(re.findall(r"^\| `(MESHCOMM_\w+)`", text("docs/environment.md"), re.MULTILINE))
