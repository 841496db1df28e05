"""Estimators of scikit-learn without its dispatch: each rank computes the same, and none writes into a tensor."""

import numpy as np
import pytest

import meshcomm as mc

pytest.importorskip("sklearn")
from sklearn import cluster, decomposition, neighbors, preprocessing, svm

ESTIMATORS = {
    "KMeans": lambda: cluster.KMeans(3, random_state=0),
    "MiniBatchKMeans": lambda: cluster.MiniBatchKMeans(3, random_state=0),
    "NMF": lambda: decomposition.NMF(2, random_state=0),
    "FastICA": lambda: decomposition.FastICA(2, random_state=0),
    "KNeighborsClassifier": neighbors.KNeighborsClassifier,
    "SVC": svm.SVC,
    "RobustScaler": preprocessing.RobustScaler,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_give_what_they_give_for_arrays(name, ranks):
    rows = np.abs(np.random.default_rng(0).normal(size=(40, 4)))
    labels = (rows[:, 0] > 0.5).astype(int)
    expected = ESTIMATORS[name]().fit(rows, labels)
    method = "predict" if hasattr(expected, "predict") else "transform"

    def program():
        t = mc.distribute(rows, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", -1)])))
        found = ESTIMATORS[name]().fit(t, labels)
        np.testing.assert_allclose(getattr(found, method)(t), getattr(expected, method)(rows))
        np.testing.assert_array_equal(t.to_numpy(), rows)

    with mc.simulate(ranks) as world:
        world.run(program)
