"""The plugins of the tests; what they do is in ``support``."""

import gc
import os
import tempfile

import pytest

# Arrays that take a test milliseconds are cut: before the first import of meshcomm. Jobs get it from `support.jobs`.
os.environ.setdefault("MESHCOMM_WHOLE_BELOW", "64KiB")

pytest.register_assert_rewrite("support")

pytest_plugins = [
    "support.launched",
    "support.waiting",
    "support.patience",
    "support.sampling",
    "support.jobs",
    "support.optional",
    "support.verdicts",
]
collect_ignore = ["jobs/programs", "fft/shims"]  # tests launch them


def pytest_collection_finish():
    """Let the garbage collector pass over the tests themselves, and over what they have imported."""
    pass_over()


def pytest_runtest_teardown(item, nextitem):
    """Let it pass over what the tests of a file have left behind, such as what is kept for calls."""
    if nextitem is None or nextitem.path != item.path:
        pass_over()


def pass_over():
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the option
def pytest_configure(config):
    """Give this process a folder of its own for tests, and import all public names.

    pytest keeps the folders of all sessions together. Ranks that remove old ones at the same time stumble over each
    other. The doctests of public classes are collected from the package, which is lazy.
    """
    if config.option.basetemp is None:
        folder = tempfile.TemporaryDirectory(prefix="meshcomm-tests-", ignore_cleanup_errors=True)
        config.option.basetemp = folder.name
        config.add_cleanup(folder.cleanup)

    import meshcomm as mc

    for name in mc.__all__:
        getattr(mc, name)
