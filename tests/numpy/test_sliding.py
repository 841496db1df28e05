"""Windows as views, and reductions of long blocks interval by interval."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.blocks import intervals

windows_of = np.lib.stride_tricks.sliding_window_view
U = mc.UNSHARDED
SHAPES = [(7,), (3,), (12, 5), (5, 12), (4, 6, 3)]
REDUCTIONS = {
    "sum": np.sum,
    "std": np.std,
    "max": np.max,
    "nanmean": np.nanmean,
    "nanvar": np.nanvar,
    "argmin": np.argmin,
    "median": np.median,
    "quantile": lambda t, axis: np.quantile(t, [0.1, 0.5], axis=axis),
    "keepdims": lambda t, axis: np.median(t, axis=axis, keepdims=True),
    "any": lambda t, axis: np.any(t > 90, axis=axis),
}


def layouts(mesh, ndim):
    """All layouts that cut one axis or none, and cyclic blocks."""
    yield from (mc.Layout(["x" if a == cut else U for a in range(ndim)], mesh) for cut in range(-1, ndim))
    yield mc.Layout([mc.Cyclic("x", 2), *[U] * (ndim - 1)], mesh)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_are_a_view_to_read_only(shape, ranks):
    array = np.arange(np.prod(shape)).reshape(shape)

    def program():
        for layout in layouts(mc.create_mesh([("x", -1)]), len(shape)):
            t = mc.distribute(array, layout)
            for axis, lengths in ((0, 1), (0, 3), (-1, 2), (None, (2,) * len(shape)), ((0, 0), (2, 2))):
                expected = windows_of(array, lengths, axis)
                found = windows_of(t, lengths, axis)
                np.testing.assert_array_equal(found.to_numpy(), expected, strict=True)
                np.testing.assert_array_equal(found.sum(-1).to_numpy(), expected.sum(-1), strict=True)
                np.testing.assert_array_equal(found.T[..., 0].to_numpy(), expected.T[..., 0], strict=True)
                assert not found.local.flags.writeable
                with pytest.raises(ValueError, match="read-only"):
                    found[0] = 1
                along = range(len(shape)) if axis is None else np.atleast_1d(axis) % len(shape)
                if all(layout.num_shards(int(a)) == 1 for a in along):
                    assert not found.local.size or np.shares_memory(found.local, t.local)

    with mc.simulate(ranks) as world:
        world.run(program)


def test_windows_of_axes_that_are_both_cut():
    array = np.arange(7 * 5 * 3).reshape(7, 5, 3)

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        for specs in (["x", "y", U], ["y", U, "x"], [mc.Cuts("x", [0, 6, 7]), mc.Cyclic("y", 2), U]):
            t = mc.distribute(array, mc.Layout(specs, mesh))
            for axis, lengths in ((None, (3, 2, 2)), ((0, 1), (4, 3)), ((1, 0, 2), (2, 2, 3))):
                found = windows_of(t, lengths, axis).to_numpy()
                assert found is None if mesh.rank is None else np.array_equal(found, windows_of(array, lengths, axis))

    with mc.simulate(5) as world:
        world.run(program)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_intervals_give_what_all_at_once_gives(name, ranks, monkeypatch):
    monkeypatch.setattr(intervals, "INTERVAL_BYTES", 200)
    array = np.random.default_rng(1).integers(0, 100, (13, 9, 5)).astype(float)
    array[2, 3] = array[5, :, 1] = np.nan
    function = REDUCTIONS[name]

    def program():
        for layout in layouts(mc.create_mesh([("x", -1)]), 3):
            t = mc.distribute(array, layout)
            for axis in (0, 1, 2, (0, 2), (1, 2)) if name != "argmin" else (0, 1, 2):
                np.testing.assert_allclose(function(t, axis=axis).to_numpy(), function(array, axis=axis), rtol=1e-12)
                np.testing.assert_allclose(
                    function(t.T, axis=axis).to_numpy(), function(array.T, axis=axis), rtol=1e-12
                )
            windows, expected = windows_of(t, 4, axis=0), windows_of(array, 4, axis=0)
            np.testing.assert_allclose(function(windows, axis=-1).to_numpy(), function(expected, axis=-1), rtol=1e-12)

    with mc.simulate(ranks) as world:
        world.run(program)
