"""Pictures as SVG: valid XML of bounded size, with the bytes that the plan moves."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.tools.pictures.layouts import layout_svg
from meshcomm.tools.pictures.plans import MAX_DEVICES, plan_svg
from meshcomm.tools.pictures.svg import COLOURS
from support.paths import ROOT
from support.picture_cases import BIG, CUBE, GRID, HUGE, LAYOUTS, PLANS

U = mc.UNSHARDED
SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg):
    """Return the tree of an SVG, after looking whether all that it has lies within its borders."""
    tree = ElementTree.fromstring(svg)
    width, height = float(tree.get("width")), float(tree.get("height"))
    assert 0 < width < 3000
    assert 0 < height < 3000
    for each in tree.iter():
        if each.tag in (SVG + "rect", SVG + "text") and each.get("x"):
            x, y = float(each.get("x")), float(each.get("y"))
            assert 0 <= x <= width
            assert 0 <= y <= height
            if each.tag == SVG + "rect":
                assert x + float(each.get("width")) <= width
                assert y + float(each.get("height")) <= height
                assert float(each.get("width")) > 0
                assert float(each.get("height")) > 0
    return tree


def texts(tree):
    return [each.text for each in tree.iter(SVG + "text")]


@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
def test_pictures_of_layouts(layout, shape):
    svg = layout_svg(layout, shape)
    tree = parsed(svg)
    assert len(svg) < 60_000
    words = tree.get("aria-label")
    assert " ".join(texts(tree)).startswith(words)


@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
def test_notebooks_show_layouts(layout, shape):
    for html in (layout.html(shape), layout._repr_html_()):
        tree = ElementTree.fromstring(html)
        (svg,) = tree.iter(SVG + "svg")
        parsed(ElementTree.tostring(svg))
        assert "<b>" not in html
        assert "white" not in html, "the page has its own ground"


def test_boxes_have_the_devices():
    tree = parsed(layout_svg(mc.Layout(["x", U], GRID), (10, 7)))
    heads = ["axis 0 ↓ axis 1 →", "0:3", "3:6", "6:8", "8:10", "0:7"]
    assert texts(tree)[2:] == [*heads, "0-1", "2-3", "4-5", "6-7"]


def test_boxes_are_in_proportion():
    tree = parsed(layout_svg(mc.Layout([mc.Cuts("x", (0, 30, 90, 150, 300)), U], GRID), (300, 300)))
    heights = [float(each.get("height")) for each in tree.iter(SVG + "rect") if each.get("stroke")]
    assert np.allclose(np.array(heights) / heights[0], [1, 2, 2, 5], rtol=0.02)


def test_a_layout_with_match_is_reported_in_words():
    assert "takes its sharding spec from the source" in mc.Layout([mc.MATCH, "x"], GRID)._repr_html_()


def test_what_is_cut_short_is_said():
    assert (
        "Cut short: it shows 8 of 100 rows of boxes and 8 of 100 columns of boxes."
        in mc.Layout(["x", "y"], BIG)._repr_html_()
    )


def test_slabs_that_are_cut_short_are_counted():
    mesh = mc.Mesh(range(24), {"x": 6, "y": 2, "z": 2})
    assert "Cut short: it shows 4 of 6 slabs." in mc.Layout(["x", "y", "z"], mesh).html((6, 2, 2))


def test_notebooks_show_tensors_without_their_data():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.distribute(np.full((4, 3), 8765, "i4"), mc.Layout(["x", U], mesh))
        return t._repr_html_(), t[1:]._repr_html_()

    with mc.simulate(2) as world:
        (whole, slice_), other = world.run(program)
    assert (whole, slice_) == other
    assert "DTensor of (4, 3) int32" in whole
    assert "8765" not in whole
    assert "DTensor of (3, 3) int32" in slice_
    ElementTree.fromstring(whole)


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_pictures_of_plans(plan):
    svg = plan_svg(plan)
    parsed(svg)
    assert len(svg) < 120_000
    tree = ElementTree.fromstring(plan._repr_html_())
    assert tree.find("pre").text == repr(plan)


def table(tree):
    """Return the numbers in the table of bytes of a picture with one step: small ones, which are exact."""
    return [int(text.strip("()").removesuffix(" B")) for text in texts(tree) if re.fullmatch(r"\(?\d+ B\)?", text)]


@pytest.mark.parametrize("plan", [plan for plan in PLANS if len(plan.steps) == 1 and len(plan.ranks) <= MAX_DEVICES])
def test_the_table_has_all_bytes(plan):
    (step,) = plan.steps
    if type(step).__name__ == "Slice":
        return
    sizes = [np.prod(step.target.block_shape(step.shape, device)) for device in range(step.target.mesh.size)]
    found = table(parsed(plan_svg(plan)))
    assert sum(found) == sum(sizes) * step.itemsize
    assert len([each for each in found if each]) >= plan.messages


def test_pieces_have_the_colours_of_the_blocks_before():
    fills = [each.get("fill") for each in parsed(plan_svg(PLANS[0])).iter(SVG + "rect")]
    before = fills[1:5]
    pieces = [fill for fill in fills[5:] if fill in before]
    assert len(set(before)) == 4
    assert pieces == before * 4


def test_pieces_of_a_slab_are_those_at_its_first_index():
    """The slabs after begin at 0 and 4 of axis 0: before, these are in blocks 0 and 2, of devices 0-5 and 12-17."""
    source, target = mc.Layout(["x", "y", "z"], CUBE), mc.Layout(["z", "x", "y"], CUBE)
    plan = mc.plan_relayout((8, 9, 10), "f8", source, target, machine=mc.Machine(wait_within=1.0))
    assert len(plan.steps) == 1
    areas = [each.get("fill") for each in parsed(plan_svg(plan)).iter(SVG + "rect") if each.get("fill-opacity")]
    assert set(areas) - {"#fff"} == set(COLOURS[:6])


def test_a_long_plan_is_cut_short():
    (plan,) = [plan for plan in PLANS if plan.source.mesh is HUGE]
    assert "Cut short: there are 65,536 ranks." in texts(parsed(plan_svg(plan)))


def test_save(tmp_path):
    plan = PLANS[0]
    plan.save(tmp_path / "plan.svg")
    plan.save(str(tmp_path / "again.SVG"))
    saved = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert saved == (tmp_path / "again.SVG").read_text(encoding="utf-8")
    assert "AllToAll along x" in " ".join(texts(parsed(saved)))
    for name in ("plan.png", "plan", "plan.svg.gz"):
        with pytest.raises(mc.LayoutError, match=r"must end in \.svg"):
            plan.save(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_picture_of_the_page_is_the_one_that_its_program_makes(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "pictures.md", "exec"), {})
    assert (tmp_path / "plan.svg").read_text() == (ROOT / "docs" / "plan.svg").read_text()
