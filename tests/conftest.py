"""The plugins of the tests; what they do is in ``support``."""

import gc

import pytest

pytest.register_assert_rewrite("support")

pytest_plugins = ["support.patience", "support.sampling", "support.jobs", "support.verdicts"]
collect_ignore = ["jobs/programs", "fft/shims"]  # tests launch them


def pytest_collection_finish():
    """Let the garbage collector pass over the tests themselves, and over what they have imported."""
    gc.collect()
    gc.freeze()


def pytest_configure():
    """Import all public names: the doctests of public classes are collected from the package, which is lazy."""
    import meshcomm as mc

    for name in mc.__all__:
        getattr(mc, name)
