"""The array API test suite on the ranks of a job: a pytest plugin for runs in a checkout of the suite.

`make test-array-api` loads it with ``-p``, together with support.verdicts. Tensors that the suite makes are sharded
over all ranks. Hypothesis draws the same examples on every rank, and the ranks agree on the outcome of each one. To
save time, failures are not shrunk.
"""

import inspect
import os
import random

import pytest
from hypothesis import HealthCheck, Phase, settings

import meshcomm as mc
import meshcomm.array_api as xp
from meshcomm.array_api import bound
from support.verdicts import agreed

SUITE = "array-api-tests"  # the name of the profile that the suite makes


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Enter a default mesh, over which tensors are cut: the suite makes arrays already when it is imported.

    With ``ARRAY_API_RULE=1`` the rule of creation decides: then the small tensors of the suite are whole on each rank.
    """
    mesh = mc.create_mesh()
    mc.default_mesh(mesh).__enter__()
    if os.environ.get("ARRAY_API_RULE") == "1":
        return
    for module in (xp, xp.fft):
        for name, function in [*vars(module).items()]:
            if inspect.isfunction(function) and name[0] != "_" and bound._makes_tensors(function):
                setattr(module, name, bound._bound_to(function, mesh))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    settings.register_profile(
        "ranks",
        settings.get_profile(SUITE),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("ranks")


def pytest_runtest_setup(item):
    random.seed(item.nodeid)  # some tests draw an example by themselves


def _enumerated(x, start=0):
    """Return ``enumerate(x)``, also for a tensor with a sharded first axis: the standard has no __iter__."""
    return enumerate(x.to_numpy() if isinstance(x, mc.DTensor) else x, start)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        module.enumerate = _enumerated
    handles = (getattr(item.obj, "hypothesis", None) for item in items)
    for handle in {id(handle): handle for handle in handles if handle is not None}.values():
        handle.inner_test = agreed(handle.inner_test)
