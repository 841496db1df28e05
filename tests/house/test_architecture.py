"""The page about the architecture is true: its picture is that of the sources, and its paths exist."""

import functools
import importlib.util
import re

import pytest

from support.paths import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text()


@pytest.fixture(scope="module")
def drawing():
    """The script that draws the picture; it reads the sources once."""
    spec = importlib.util.spec_from_file_location("draw_layers", DOCS / "draw_layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.imports = functools.cache(module.imports)
    return module


def test_the_picture_is_that_of_the_sources(drawing):
    assert drawing.PICTURE.read_text() == drawing.svg(), "run python docs/draw_layers.py"


def test_all_arrows_go_down(drawing):
    order = {folder: number for number, folder in enumerate(drawing.FOLDERS)}
    assert [arrow for arrow in drawing.imports() if order[arrow[0]] >= order[arrow[1]]] == []


def test_a_new_import_changes_the_picture(drawing, monkeypatch):
    arrows = drawing.imports()
    monkeypatch.setattr(drawing, "imports", lambda: arrows + type(arrows)({("layouts", "memory"): 1}))
    assert drawing.PICTURE.read_text() != drawing.svg()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:[\w.]+/)+\w+\.\w+|_\w+\.py)`", PAGE))))
def test_paths_exist(path):
    assert (ROOT / path).exists() or (ROOT / "meshcomm" / path).exists()
