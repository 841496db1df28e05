"""Random transforms of tensors against SciPy's of whole arrays: the same bits on one rank, close on several."""

import pytest

pytest.importorskip("scipy.fft")

from support.fft_cases import case_of, check
from support.sampling import sampled


@pytest.mark.parametrize("number", sampled(range(0, 100, 10)))
def test_random_transforms(number):
    for each in range(number, number + 10):
        check(case_of(each))


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled(range(100, 5000, 100), 2))
def test_many_random_transforms(number):
    for each in range(number, number + 100):
        check(case_of(each))
