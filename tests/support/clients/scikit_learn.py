"""scikit-learn's tests with `array_api_dispatch`: those over array libraries, of functions and of estimators."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from support.clients import cutting

ENVIRONMENT = {"SCIPY_ARRAY_API": "1", "SKLEARN_SKIP_NETWORK_TESTS": "1"}
NAME = "meshcomm.array_api"
FILES = [
    *(f"_loss/tests/test_{name}.py" for name in ("loss", "link")),
    "decomposition/tests/test_pca.py",
    *(
        "linear_model/tests/test_logistic.py",
        "linear_model/tests/test_ridge.py",
        "linear_model/_glm/tests/test_glm.py",
    ),
    *(f"metrics/tests/test_{name}.py" for name in ("classification", "common", "pairwise")),
    *(f"metrics/cluster/tests/test_{name}.py" for name in ("common", "supervised")),
    "mixture/tests/test_gaussian_mixture.py",
    *(f"model_selection/tests/test_{name}.py" for name in ("search", "split", "validation")),
    *(f"preprocessing/tests/test_{name}.py" for name in ("data", "label", "polynomial")),
    *(f"tests/test_{name}.py" for name in ("calibration", "kernel_approximation", "naive_bayes", "pipeline")),
    "tests/test_common.py",
    *(f"utils/tests/test_{name}.py" for name in ("array_api", "extmath", "indexing", "multiclass", "optimize")),
    *(f"utils/tests/test_{name}.py" for name in ("stats", "validation")),
]


def root():
    """Return the folder of the package."""
    return Path(find_spec("sklearn").origin).parent


def paths(root):
    """Return the files of tests; *root* is the folder of the package."""
    return [str(root / name) for name in FILES]


def takes(item):
    """Return whether a test belongs to the suite."""
    return NAME in item.nodeid


def install(on_tensors):
    """Let scikit-learn's list of array libraries have tensors, or NumPy's arrays, only."""
    array_api = import_module("sklearn.utils._array_api")
    testing = import_module("sklearn.utils._testing")
    namespace_and_device = array_api.NamespaceAndDevice

    def given(array_namespace, device_name=None, dtype_name=None):
        if array_namespace == NAME and on_tensors:
            return cutting.bound_to_mesh()  # what has this device is cut
        return array_api.np_compat, None

    def mixed():
        yield namespace_and_device(NAME, None), namespace_and_device("numpy", None), f"{NAME} to numpy"
        yield namespace_and_device("numpy", None), namespace_and_device(NAME, None), f"numpy to {NAME}"

    array_api.yield_namespaces = lambda include_numpy_namespaces=True: iter([NAME])
    array_api.yield_mixed_namespace_input_permutations = mixed
    testing._array_api_for_tests = given
