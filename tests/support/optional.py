"""Leaves out the doctests of modules that need a library which is not installed."""

from importlib.util import find_spec

NEEDED = {
    "meshcomm.adapters.autograd": "autograd",
    "meshcomm.adapters.pandas": "pandas",
    "meshcomm.adapters.scipy_ndimage": "scipy",
    "meshcomm.adapters.scipy_sparse_linalg": "scipy",
    "meshcomm.adapters.zarr": "zarr",
    "meshcomm.tools.interactive.install": "jupyter_client",
    "meshcomm.tools.interactive.kernel": "ipykernel",
    "meshcomm.tools.interactive.prompt": "IPython",
    "meshcomm.tools.interactive.shells": "IPython",
    "meshcomm.torch": "torch",
}
"""Modules that import an optional library, and its name."""


def can_import(module):
    """Return whether the optional library that *module* needs, if any, is installed."""
    return module not in NEEDED or find_spec(NEEDED[module]) is not None


def pytest_ignore_collect(collection_path):
    parts = collection_path.with_suffix("").parts
    if "meshcomm" in parts:
        package_index = len(parts) - 1 - parts[::-1].index("meshcomm")
        if not can_import(".".join(parts[package_index:])):
            return True
    return None  # others decide
