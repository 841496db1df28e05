"""scikit-learn on images that are cut over the ranks: mpiexec -n 4 python mpi_examples/scikit_learn.py

Each rank has some of the images. scikit-learn's own estimators take the tensor, once `array_api_dispatch` is on: they
scale the pixels, find principal components, and learn which digit an image shows. The same lines on NumPy's arrays, on
one rank, say whether the results are right. The program runs on any number of ranks, and prints the same on each.
"""

import os

os.environ["SCIPY_ARRAY_API"] = "1"  # scikit-learn asks for it, before SciPy is imported

from sklearn import config_context
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import meshcomm as mc
import meshcomm.numpy as np

LEARNED = 1200  # of 1797 images; the others are to be recognised


def learn(images, digits):
    """Return the scores of the images that are not learned, and the share of the variance in the components."""
    model = make_pipeline(StandardScaler(), PCA(24, svd_solver="full"), RidgeClassifier(solver="svd"))
    model.fit(images[:LEARNED], digits[:LEARNED])
    scores = model.decision_function(images[LEARNED:])
    accuracy = accuracy_score(digits[LEARNED:], model.predict(images[LEARNED:]))
    return scores, model.named_steps["pca"].explained_variance_ratio_, accuracy


data = load_digits()
mesh = mc.create_mesh([("x", -1)])
images = np.array(data.data, layout=mc.Layout(["x", mc.UNSHARDED], mesh))
digits = np.array(data.target)  # which is small: whole on each rank
# scikit-learn divides 0 by 0 and leaves the result out; only of NumPy's arrays it hides the warning by itself.
with config_context(array_api_dispatch=True), np.errstate(invalid="ignore"):
    scores, shares, accuracy = learn(images, digits)

assert isinstance(scores, mc.DTensor)
found, explained = scores.to_numpy(), shares.to_numpy()
if mc.is_root():
    expected = learn(data.data, data.target)
    difference = abs(found - expected[0]).max()
    assert difference < 1e-9
    assert np.allclose(explained, expected[1])
    assert accuracy == expected[2]
    print(f"{len(explained)} components of 64 pixels have {explained.sum():.1%} of the variance")
    print(f"{accuracy:.1%} of {len(found)} images are recognised, the same ones as on NumPy's arrays")
