"""mc.ndimage against scipy.ndimage on the whole array, at the borders of blocks too; labels, outputs and errors."""

import re
import sys

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, MeshcommError, ShapeError
from meshcomm.ndimage.interpolation import output_layout
from support.halo_cases import with_cuts
from support.paths import DATA
from support.random_cases import random_layout
from support.reference import block_of, on_ranks
from support.sampling import sampled
from support.tensors import on, on_some_ranks

scipy_ndimage = pytest.importorskip("scipy.ndimage")
calls = pytest.importorskip("support.ndimage_calls")


@pytest.mark.parametrize("seed", sampled(range(60), 5))
@pytest.mark.parametrize("title", calls.CALLS)
def test_functions_are_those_of_scipy(title, seed):
    on_some_ranks(seed, lambda random, mesh: calls.law(title, seed, mesh))


STRUCTURES = ("generate_binary_structure", "iterate_structure")
LABELS = ("label", "find_objects", "value_indices")


def test_all_public_functions_are_tested():
    tried = {*re.findall(r"\w+", (DATA / "ndimage_calls.txt").read_text("utf-8")), *STRUCTURES, *LABELS}
    assert [name for name in mc.ndimage.__all__ if name not in tried] == []
    missing = {*scipy_ndimage.__all__} - {*mc.ndimage.__all__}
    assert [name for name in missing if callable(getattr(scipy_ndimage, name))] == ["watershed_ift"]


@pytest.mark.parametrize("seed", sampled(range(60), 8))
def test_labels_are_those_of_scipy(seed):
    def program(random, mesh):
        for _ in range(4):
            shape = tuple(random.randint(1, 12) for _ in range(random.choice([1, 2, 2, 3])))
            whole = np.random.default_rng(random.randrange(10**6)).random(shape) < random.choice([0.3, 0.5, 0.7])
            given = random.choice([{}, {"structure": np.ones((3,) * len(shape))}, {"output": "i8"}])
            layout = with_cuts(random, random_layout(random, mesh, len(shape)), shape, mesh)
            expected, count = scipy_ndimage.label(whole, **given)
            found, ours = mc.ndimage.label(mc.distribute(whole, layout), **given)
            most = random.choice([0, count + 2])
            objects, values = mc.ndimage.find_objects(found, most), mc.ndimage.value_indices(found, ignore_value=0)
            if found.local is None:
                assert (ours, objects, values) == (None, None, None)
                continue
            assert (ours, found.dtype) == (count, expected.dtype)
            assert np.array_equal(found.local, block_of(expected, layout, mesh.rank)), (whole, layout)
            assert objects == scipy_ndimage.find_objects(expected, most)
            theirs = scipy_ndimage.value_indices(expected, ignore_value=0)
            assert {k: [each.to_numpy().tolist() for each in v] for k, v in values.items()} == {
                k: [each.tolist() for each in v] for k, v in theirs.items()
            }

    on_some_ranks(seed, program)


@on_ranks(3)
def test_only_some_axes_and_outputs_that_are_tensors():
    mesh = mc.create_mesh([("x", 3)])
    rows, columns = Layout(["x", mc.UNSHARDED], mesh), Layout([mc.UNSHARDED, "x"], mesh)
    whole = np.random.default_rng(0).normal(size=(7, 8))
    t = mc.distribute(whole, rows)
    for name, given in (
        ("gaussian_filter", {"sigma": 1.0, "axes": (1,)}),
        ("minimum_filter", {"size": 3, "axes": (0,)}),
    ):
        found = getattr(mc.ndimage, name)(t, **given)
        assert np.array_equal(found.to_numpy(), getattr(scipy_ndimage, name)(whole, **given))
        assert found.local.flags.c_contiguous
    for layout in (rows, columns):
        output = mc.zeros((7, 8), "f4", layout)
        assert mc.ndimage.sobel(t, output=output) is output
        assert np.array_equal(output.to_numpy(), scipy_ndimage.sobel(whole, output="f4"))
    with pytest.raises(ShapeError, match="output has shape"):
        mc.ndimage.sobel(t, output=mc.zeros((8, 7), "f4", rows))


def test_an_unsharded_axis_moves_nothing():
    def program():
        layout = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        whole = np.random.default_rng(0).normal(size=(4, 9))
        t = mc.distribute(whole, layout)
        for name, given in (("gaussian_filter1d", {"sigma": 2.0, "axis": 1}), ("median_filter", {"size": (1, 5)})):
            with mc.count() as c:
                result = getattr(mc.ndimage, name)(t, **given)
            assert c.bytes == 0
            assert np.array_equal(result.to_numpy(), getattr(scipy_ndimage, name)(whole, **given))

    on(2, program)


@on_ranks(2)
def test_an_empty_array():
    layout = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    for name in ("gaussian_filter", "laplace", "median_filter"):
        given = {"gaussian_filter": {"sigma": 1}, "median_filter": {"size": 3}}.get(name, {})
        found = getattr(mc.ndimage, name)(mc.zeros((0, 3), "f4", layout), **given)
        assert (found.shape, found.local.shape, found.dtype) == ((0, 3), (0, 3), np.float32)


def test_structures_are_those_of_scipy():
    found = mc.ndimage.generate_binary_structure(3, 2)
    assert np.array_equal(found, scipy_ndimage.generate_binary_structure(3, 2))
    assert np.array_equal(mc.ndimage.iterate_structure(found, 2), scipy_ndimage.iterate_structure(found, 2))


def test_each_rank_reads_only_what_its_block_needs():
    def program():
        t = mc.zeros((64, 4), "f8", Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 4)])))
        with mc.count() as zoomed:
            mc.ndimage.zoom(t, 2, order=1)
        with mc.count() as shifted:
            mc.ndimage.shift(t, (0.5, 0), order=3, prefilter=False)
        return zoomed.bytes, shifted.bytes

    row = 4 * 8
    assert all(0 < received <= 4 * row for counts in on(4, program) for received in counts)


@on_ranks(2)
def test_outputs_and_errors():
    mesh = mc.create_mesh([("x", 2)])
    rows, columns = Layout(["x", mc.UNSHARDED], mesh), Layout([mc.UNSHARDED, "x"], mesh)
    whole = np.random.default_rng(0).random((6, 5)) < 0.6
    t = mc.distribute(whole, rows)
    into = mc.zeros((6, 5), "i4", columns)
    assert mc.ndimage.label(t, output=into) == scipy_ndimage.label(whole)[1]
    assert np.array_equal(into.to_numpy(), scipy_ndimage.label(whole)[0])
    far = mc.zeros((6, 5), "f8", columns)
    assert mc.ndimage.distance_transform_edt(t, distances=far) is None
    assert np.array_equal(far.to_numpy(), scipy_ndimage.distance_transform_edt(whole))
    out = mc.zeros((12, 10), "f4", columns)
    assert mc.ndimage.zoom(t, 2, out, order=1) is out
    with pytest.raises(RuntimeError, match="output shape"):
        mc.ndimage.zoom(t, 3, out)
    with pytest.raises(RuntimeError, match="bit-depth"):
        mc.ndimage.label(mc.distribute(np.arange(600).reshape(2, 300) % 2, rows), output="i1")
    with pytest.raises(NotImplementedError, match="way along the whole array"):
        mc.ndimage.distance_transform_cdt(t, return_indices=True)
    with pytest.raises(RuntimeError, match="equal sizes"):
        mc.ndimage.binary_erosion(t, mask=np.ones((5, 6), bool))
    cyclic = mc.zeros((8, 2), "f8", Layout([mc.Cyclic("x", 1), mc.UNSHARDED], mesh))
    for function in (mc.ndimage.label, mc.ndimage.binary_erosion, mc.ndimage.distance_transform_edt):
        with pytest.raises(LayoutError, match="Cyclic"):
            function(cyclic)
    assert mc.ndimage.sum_labels(cyclic + 1) == 16
    with pytest.raises(LayoutError, match="call distribute first"):
        mc.ndimage.zoom(whole, 2)
    assert output_layout(t, (3,)).sharding_specs == ["x"]


@on_ranks(2)
def test_errors_are_those_of_scipy_or_say_what_to_do():
    layout = Layout(["x"], mc.create_mesh([("x", 2)]))
    t = mc.zeros(8, "f8", layout)
    with pytest.raises(LayoutError, match="call distribute first"):
        mc.ndimage.sobel(np.zeros(3))
    with pytest.raises(LayoutError, match="Cyclic"):
        mc.ndimage.sobel(mc.zeros(8, "f8", Layout([mc.Cyclic("x", 1)], layout.mesh)))
    with pytest.raises(RuntimeError, match="mode"):
        mc.ndimage.sobel(t, mode="around")
    with pytest.raises(ValueError, match="origin"):
        mc.ndimage.correlate1d(t, [1, 2, 3], origin=2)
    with pytest.raises(RuntimeError):
        mc.ndimage.median_filter(t)
    with pytest.raises(mc.DTypeError, match="SciPy rounds it"):
        mc.ndimage.median_filter(mc.zeros(8, "i4", layout), 3, mode="constant", cval=0.5)
    with pytest.raises(mc.AxisError):
        mc.ndimage.sobel(t, axis=1)


def test_what_a_function_raises_on_one_rank_all_raise():
    def program():
        t = mc.zeros(8, "f8", Layout(["x"], mc.create_mesh([("x", 2)])))
        with pytest.raises(ZeroDivisionError):
            mc.ndimage.geometric_transform(t, lambda at: (1 / (at[0] - 6),))
        with pytest.raises(ZeroDivisionError):
            mc.ndimage.labeled_comprehension(t, np.arange(8), [1, 2], lambda x, at: 1 / int(at[0] - 2), float, 0, True)

    on(2, program)


def test_without_scipy(monkeypatch):
    for name in ("scipy", "scipy.ndimage"):
        monkeypatch.setitem(sys.modules, name, None)

    def program():
        mc.ndimage.sobel(mc.zeros(4, "f8", Layout(["x"], mc.create_mesh([("x", 1)]))))

    with pytest.raises(MeshcommError, match="pip install scipy"):
        on(1, program)
