"""Texts of the command line."""

import pytest

import meshcomm as mc
from meshcomm.tools.cli.arguments import bytes_of, dtype_of, layout_of, mesh_of, shape_of


def test_a_mesh_is_that_of_the_api():
    assert mesh_of("x=2,y=3") == mc.Mesh(range(6), [("x", 2), ("y", 3)])


def test_layouts_of_all_kinds():
    mesh = mesh_of("x=2,y=3")
    for specs in (["x", "unsharded"], [("x", "y"), "unsharded"], [mc.Cyclic("x", 4), mc.Cuts("y", (0, 1, 5, 9))]):
        layout = mc.Layout(specs, mesh)
        text = layout.to_string().removeprefix("sharding_specs:").partition(", mesh:")[0]
        assert layout_of(text, mesh) == layout


@pytest.mark.parametrize("text", ["", "x", "x=", "x=a", "=3", "x=2,x=2", "x=0", "a|x=2|*CPU", "x=2,"])
def test_wrong_meshes(text):
    with pytest.raises(mc.MeshError):
        mesh_of(text)


def test_a_size_that_is_left_to_the_job_needs_a_job():
    with pytest.raises(mc.MeshError, match="no ranks run here to count; write the size of y, such as y=4"):
        mesh_of("x=2, y=-1")


@pytest.mark.parametrize(("text", "meant"), [("x=cylic(4)", "cyclic"), ("x=cut(0;2;4)", "cuts")])
def test_misspelt_kinds_of_layouts(text, meant):
    with pytest.raises(mc.LayoutError, match=rf"is no rule of a spec; .*; did you mean '{meant}'\?"):
        layout_of(text, mesh_of("x=2"))


def test_commas_in_parentheses():
    with pytest.raises(
        mc.LayoutError, match=r"'cyclic\(x,2\)': a comma ends a sharding spec; write x=cuts\(0;10;25\) or x=cyclic"
    ):
        layout_of("cyclic(x,2)", mesh_of("x=2"))


@pytest.mark.parametrize("text", ["x,", "z", "x,x", "x=cut(3)"])
def test_wrong_layouts(text):
    with pytest.raises(mc.LayoutError):
        layout_of(text, mesh_of("x=2"))


@pytest.mark.parametrize("text", ["3,", "-1", "4x4", "3.0", "²"])
def test_wrong_shapes(text):
    with pytest.raises(mc.ShapeError):
        shape_of(text)


@pytest.mark.parametrize("text", ["", "f9", "O", "double float", "f8,(", "1)"])
def test_wrong_dtypes(text):
    with pytest.raises(mc.DTypeError):
        dtype_of(text)


@pytest.mark.parametrize("text", ["", "K", "1.5.2M", "-1", "1 K", "1KK", "1Kib2", "²"])
def test_wrong_sizes(text):
    with pytest.raises(mc.MeshcommError):
        bytes_of(text)
