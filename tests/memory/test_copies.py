"""Copies of arrays whose elements lie in any order."""

import numpy as np
import pytest

from meshcomm.core._tuning import OWN_COPY_FROM
from meshcomm.core.memory.copies import exact_copy


@pytest.mark.parametrize("size", [1, 40])
@pytest.mark.parametrize(
    "lies",
    [
        lambda a: a.transpose(2, 0, 1),
        lambda a: a[::-1, ::2],
        lambda a: a[1:, ::-1, ::-3].T,
        lambda a: np.broadcast_to(a[:, :1], a.shape),
    ],
)
def test_a_copy_has_the_same_elements_in_order(lies, size):
    a = lies(np.random.default_rng(size).standard_normal((size + 1, 2 * size, 3 * size)))
    assert size == 1 or a.nbytes >= OWN_COPY_FROM, "which NumPy does not copy"
    found = exact_copy(a)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, a)
