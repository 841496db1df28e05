"""What people do with arrays of xarray is the same on tensors, in any layout, as on NumPy."""

from itertools import cycle

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

cases = pytest.importorskip("support.xarray_cases")
xarray = cases.xarray
mx = pytest.importorskip("meshcomm.xarray")

U = mc.UNSHARDED
LAYOUTS = [
    ([("x", 3)], [U, "x", U]),
    ([("x", 2)], ["x", U, U]),
    ([("x", 2), ("y", 2)], [U, "x", "y"]),
    ([("x", 8)], [U, "x", U]),
    ([("x", 2)], [mc.Cyclic("x", 2), U, U]),
]
EACH = [*zip(cycle(LAYOUTS), [*cases.OPERATIONS, *cases.NUMPYS, *cases.OTHERS])]
"""One layout for each."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning", "ignore:All-NaN slice:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::xarray.core.extensions.AccessorRegistrationWarning", "ignore:FigureCanvasAgg"),
    pytest.mark.filterwarnings("ignore:Treating an array-like object"),
]


def same(found, expected):
    """Check an array of xarray, whatever holds its elements. Collective."""
    assert type(found) is type(expected)
    assert (found.dims, found.dtype, found.name, found.attrs) == (
        expected.dims,
        expected.dtype,
        expected.name,
        expected.attrs,
    )
    assert set(found.coords) == set(expected.coords)
    for its, right in [(found, expected), *((found[name], expected[name]) for name in expected.coords)]:
        its, right = np.asarray(its.data), np.asarray(right.data)
        assert its.shape == right.shape
        if right.dtype.kind in "fc":
            np.testing.assert_allclose(its, right, rtol=1e-9, atol=1e-9)
        else:
            assert all(a == b or (a != a and b != b) for a, b in zip(its.ravel(), right.ravel(), strict=True))


@pytest.mark.parametrize(("layout", "call"), EACH, ids=[call for _, call in EACH])
def test_operations(layout, call):
    dims, specs = layout
    if "plot" in call:
        pytest.importorskip("matplotlib").use("Agg")
    try:
        expected = cases.called(call, cases.weather())
    except ImportError as error:
        pytest.skip(str(error))

    def program():
        found = cases.called(call, cases.on_mesh(specs, mc.create_mesh(dims)))
        if not isinstance(expected, xarray.DataArray):
            return found == expected or abs(found - expected) < 1e-6
        same(found, expected)
        return isinstance(found.data, mc.DTensor) == (call not in cases.NUMPYS)

    assert all(on(int(np.prod([n for _, n in dims])), program))
