"""Random relayouts in lockstep: any meshes, layouts, lengths, limits and maps of nodes.

Of a hundred thousand cases, `make test` runs some hundred, `make test-all` some thousand, and with
``CASES=--exhaustive`` all of them.

Case 4711 is ``any_case(4711)`` on every machine: `check_case` of it alone repeats what failed here. Odd cases have
layouts of all kinds: names, chosen boundaries, cyclic blocks.
"""

import traceback

import pytest

from support.random_cases import any_case, check_case
from support.sampling import sampled

CASES = 100_000
BLOCKS = 20


def failure_of(cases):
    """Return what is wrong with the first of *cases* that fails, or None."""
    for case in cases:
        try:
            check_case(any_case(case), predicted=case // BLOCKS % 4 == 0)  # which takes half of the time
        except Exception:
            return f"case {case}: {any_case(case)}\n{traceback.format_exc()}"
    return None


@pytest.mark.parametrize("kinds", [False, True], ids=["names", "all kinds"])
def test_some_random_cases(kinds):
    assert failure_of(sampled(range(int(kinds), CASES, 2), 120)[:400]) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", range(BLOCKS))
def test_random_cases(number):
    failure = failure_of(sampled(range(number, CASES, BLOCKS), 200))
    assert failure is None, failure
