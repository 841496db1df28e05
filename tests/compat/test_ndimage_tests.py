"""SciPy's own tests of scipy.ndimage on tensors: all pass but those in tests/data/ndimage_tests.txt."""

import pytest

from support import ndimage_shim
from support.client_suites import has_reasons, known_of
from support.paths import DATA
from support.sampling import sampled

scipy = pytest.importorskip("scipy")

TABLE = DATA / "ndimage_tests.txt"


@pytest.mark.skipif(not scipy.__version__.startswith("1.17."), reason="the table is for the tests of this version")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("module", ndimage_shim.MODULES)
def test_scipys_own_tests(module, ranks):
    chosen = sampled(list(ndimage_shim.cases(module, ranks)), 60 // ranks)
    found = ndimage_shim.outcomes(module, ranks, chosen)
    known = known_of(TABLE, ranks, found)
    failed = {name: repr(error)[:200] for name, error in found.items() if error is not None}
    assert {name: error for name, error in failed.items() if name not in known} == {}
    assert known - set(failed) == set(), "they pass now: take them out of the table"
    assert len(found) > len(failed) or (module, ranks) == ("test_fourier", 3)  # there each rank draws its numbers


def test_every_group_has_a_reason():
    assert has_reasons(TABLE)
