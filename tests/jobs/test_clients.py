"""Tests of SciPy, xarray and scikit-learn on sharded tensors, a sample of `make test-clients`, and an example."""

from importlib import metadata

import pytest

from support.client_suites import table_of
from support.paths import EXAMPLES, ROOT, TESTS

pytestmark = pytest.mark.any_mpi

SAMPLES = {
    "scikit_learn": ["metrics/cluster/tests/test_supervised.py", "preprocessing/tests/test_label.py"],  # that of CI
    "scipy": [
        "cluster/tests/test_vq.py",
        "fft/tests/test_helper.py",
        "stats/tests/test_entropy.py",
        "stats/tests/test_variation.py",
    ],
    "xarray": ["tests/test_array_api.py", "tests/test_merge.py", "tests/test_ufuncs.py"],
}


def needs(package):
    """Skip the test unless the *package* is there, in the version that its table is for."""
    pytest.importorskip({"scikit-learn": "sklearn"}.get(package, package))
    if package == "xarray":
        pytest.importorskip("array_api_strict")  # which its tests import
    words = table_of(package.replace("-", "_")).read_text("utf-8").split()
    version = metadata.version(package)
    if version not in words[:10]:
        pytest.skip(f"the table of tests that fail is for another version of {package} than {version}")


@pytest.mark.parametrize("suite", SAMPLES)
def test_their_own_tests(launch, suite):
    needs(suite.replace("_", "-"))
    path = f"{TESTS}:{ROOT}"
    job = launch(
        3, "-m", "support.client_suites", suite, *SAMPLES[suite], cpu=240, PYTHONPATH=path, PYTHONHASHSEED="0"
    )
    assert job.code == 0, job
    assert f"{suite.replace('_', ' ')} on 3 ranks: " in job.text.replace("_", " ")
    assert " 0 fail" in job.text


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_scikit_learn_recognises_digits(launch, ranks):
    pytest.importorskip("sklearn")
    job = launch(ranks, EXAMPLES / "scikit_learn.py")
    assert job.code == 0, job
    assert "24 components of 64 pixels have 84.3% of the variance\n" in job.text
    assert "85.9% of 597 images are recognised, the same ones as on NumPy's arrays\n" in job.text
