"""The plugins of the tests; what they do is in ``support``."""

import pytest

pytest.register_assert_rewrite("support")

pytest_plugins = ["support.patience", "support.sampling", "support.jobs", "support.verdicts"]
collect_ignore = ["jobs/programs", "fft/shims"]  # tests launch them
