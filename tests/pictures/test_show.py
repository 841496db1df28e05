"""`show`: a layout as text that fits its width, whatever the layout."""

import re

import pytest

import meshcomm as mc
from support.picture_cases import BIG, LAYOUTS

U = mc.UNSHARDED


def lines(*args, **kwargs):
    return re.sub(r"\x1b\[[0-9;]*m", "", mc.show(*args, **kwargs)).split("\n")


@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
@pytest.mark.parametrize("width", [56, 80, 200])
def test_lines_fit_and_are_few(layout, shape, width):
    for unicode in (False, True):
        found = lines(layout, shape, width=width, unicode=unicode, colour=unicode)
        assert max(map(len, found)) <= width
        assert len(found) < 90


@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
def test_plain_text_is_ascii_and_the_same_picture(layout, shape):
    plain, drawn = mc.show(layout, shape), lines(layout, shape, unicode=True, colour=True)
    assert plain.isascii()
    unicode = str.maketrans({**dict.fromkeys("┌┬┐├┼┤└┴┘", "+"), "─": "-", "│": "|"})
    if "..." not in plain:
        assert plain.split("\n") == [line.translate(unicode) for line in drawn]


def test_colours_only_if_asked_for():
    layout, shape = mc.Layout(["x", U], BIG), (300, 4)
    assert "\x1b" not in mc.show(layout, shape, unicode=True)
    assert mc.show(layout, shape, colour=True).count("\x1b[0m") == 12


def test_what_is_left_out_is_counted():
    text = mc.show(mc.Layout(["x", "y"], BIG), (10**6, 10**6))
    assert text.split("\n")[-1] == "... stands for 88 of 100 rows and 96 of 100 columns of boxes."
    boxes = [line for line in text.split("\n") if "|" in line and not line.lstrip().startswith("...")]
    assert len(boxes) == 12
    assert " 9999 " in boxes[-1]


def test_several_cut_axes_make_slabs():
    mesh = mc.Mesh(range(8), {"x": 2, "y": 2, "z": 2})
    text = mc.show(mc.Layout(["x", U, "y", "z"], mesh), (4, 3, 2, 2))
    assert re.findall(r"^axis 0 at .*$", text, re.M) == ["axis 0 at 0:2:", "axis 0 at 2:4:"]
    assert "Axis 2 goes down, axis 3 across." in " ".join(text.split())
    assert re.findall(r"\|  (\d)  (?=\|)", text) == list("01234567")


def test_a_mesh_is_a_grid_of_its_devices():
    text = mc.show(mc.Mesh([5, 4, 3, 2, 1, 0, 6, 7], {"x": 2, "y": 2, "z": 2}, "<mesh>"))
    assert text.startswith("mesh x=2, y=2, z=2: 8 devices. The devices are the ranks 5, 4, 3, 2, 1, 0, 6, 7.")
    assert re.findall(r"^x=.*$", text, re.M) == ["x=0:", "x=1:"]
    assert "Dimension y goes down, dimension z across. Boxes show devices." in " ".join(text.split())
    assert re.findall(r"\|  (\d)  (?=\|)", text) == list("01234567")
    assert re.findall(r"y=(\d) \|", text) == list("0101")
    assert mc.show(mc.Mesh.from_device("/job:a/task:0/device:CPU:0")).count("|") == 2
    assert max(map(len, lines(BIG, width=56))) <= 56


def test_a_mesh_shows_itself_in_a_notebook():
    html = mc.Mesh(range(4), {"x": 2, "y": 2}, "<mesh>")._repr_html_()
    assert html.startswith("<div><strong>Mesh &lt;mesh&gt;</strong><p>mesh x=2, y=2: 4 devices.</p><svg ")
    assert re.findall(r"<title>devices (\d)</title>", html) == list("0213"), "boxes come column by column"
    for label in ("x=0", "x=1", "y=0", "y=1", "dimension x ↓ dimension y →"):
        assert html.count(f">{label}</text>") == 1


def test_words_without_a_picture():
    assert "no elements" in mc.show(mc.Layout(["x", U], BIG), (0, 4))
    assert "|" not in mc.show(mc.Layout(["x", U], BIG), (0, 4))
    assert mc.show(mc.Layout([], BIG), ()).startswith("() on mesh x=100, y=100: one element. All 10000 devices hold")


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: mc.show("x", (3,)), mc.LayoutError, "a Layout or a Mesh, not 'x', a str"),
        (lambda: mc.show(mc.Layout([mc.MATCH], BIG), (3,)), mc.LayoutError, "'match'"),
        (lambda: mc.show(BIG, (3, 4)), mc.ShapeError, "without a shape"),
        (lambda: mc.show(mc.Layout(["x"], BIG), (3, 4)), mc.LayoutError, "2 axes, but the layout is for 1"),
        (lambda: mc.show(mc.Layout(["x"], BIG), (-3,)), mc.ShapeError, "negative"),
        (lambda: mc.show(mc.Layout([mc.Cyclic("x", 2)], BIG), (2**62,)), mc.ShapeError, "too long"),
        (lambda: mc.show(mc.Layout(["x"], BIG), (3,), width=55), mc.ShapeError, "56 or more"),
    ],
)
def test_errors(make, error, says):
    with pytest.raises(error) as found:
        make()
    assert says in str(found.value)
