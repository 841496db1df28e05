"""mc.ndimage on real ranks: boxes that ranks read, labels across blocks, distances, measurements."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import UNSHARDED, Layout

scipy_ndimage = pytest.importorskip("scipy.ndimage")


def equal(found, expected):
    assert found.dtype == expected.dtype
    assert np.array_equal(found.local, expected[found.layout.block_slices(expected.shape)])


@pytest.mark.parametrize("axis", [0, 1])
def test_functions_give_the_values_of_scipy(comm, axis):
    mesh = mc.create_mesh([("x", comm.size)], comm=comm)
    layout = Layout([UNSHARDED] * axis + ["x"] + [UNSHARDED] * (1 - axis), mesh)
    whole = np.random.default_rng(3).random((40, 30))
    marks = whole < 0.55
    t, m = mc.distribute(whole, layout), mc.distribute(marks, layout)
    for order in (0, 1, 3):
        found = mc.ndimage.rotate(t, 30, order=order).local
        expected = scipy_ndimage.rotate(whole, 30, order=order)
        rows = layout.block_slices(expected.shape)
        assert np.allclose(found, expected[rows], 1e-12, 1e-12)
    labels, count = mc.ndimage.label(m)
    theirs, number = scipy_ndimage.label(marks)
    assert count == number
    equal(labels, theirs)
    index = np.arange(1, count + 1)
    assert np.allclose(mc.ndimage.sum_labels(t, labels, index), scipy_ndimage.sum_labels(whole, theirs, index))
    assert np.array_equal(mc.ndimage.median(t, labels, index), scipy_ndimage.median(whole, theirs, index))
    assert mc.ndimage.maximum_position(t) == scipy_ndimage.maximum_position(whole)
    assert mc.ndimage.find_objects(labels) == scipy_ndimage.find_objects(theirs)
    equal(mc.ndimage.distance_transform_edt(m), scipy_ndimage.distance_transform_edt(marks))
    equal(mc.ndimage.binary_fill_holes(m), scipy_ndimage.binary_fill_holes(marks))
    equal(mc.ndimage.white_tophat(t, 3), scipy_ndimage.white_tophat(whole, 3))
    mesh.close()
