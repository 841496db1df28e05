"""Principal components of handwritten digits: mpiexec -n 4 python mpi_examples/pca.py

Each rank has some of the images. Their mean, the singular value decomposition and the coordinates of the images are
NumPy's functions, by one other import. scikit-learn computes the same from all images, on one rank. The picture shows
where the digits lie along the first two components. The program runs on any number of ranks.
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import meshcomm as mc
import meshcomm.numpy as np

WIDTH, HEIGHT, SHOWN = 70, 24, (0, 1, 4, 6)  # the picture, and the digits in it

digits = load_digits()
mesh = mc.create_mesh([("x", -1)])
images = np.array(digits.data, layout=mc.Layout(["x", mc.UNSHARDED], mesh))  # small arrays are whole by default

centred = images - images.mean(axis=0)
u, s, components = np.linalg.svd(centred, full_matrices=False)
explained = s**2 / (len(images) - 1)
coordinates = centred @ components[:2].T  # as the images are: each rank has those of its own

found, where = components.to_numpy(), coordinates.to_numpy()
shares = (explained / explained.sum()).to_numpy()
if mc.is_root():
    expected = PCA().fit(digits.data)
    signs = np.sign((found[:10] * expected.components_[:10]).sum(axis=1))
    difference = abs(found[:10] * signs[:, None] - expected.components_[:10]).max()
    assert difference < 1e-9
    assert np.allclose(shares, expected.explained_variance_ratio_)

    picture = [[" "] * WIDTH for _ in range(HEIGHT)]
    low, high = where.min(axis=0), where.max(axis=0)
    cells = ((where - low) / (high - low) * [WIDTH - 1, HEIGHT - 1]).astype(int)
    for (column, row), digit in zip(cells, digits.target, strict=True):
        if digit in SHOWN:
            picture[row][column] = str(digit)
    print("\n".join("".join(row).rstrip() for row in picture))
    print(f"the first two of 64 components have {shares[:2].sum():.1%} of the variance")
    print(f"the largest difference from scikit-learn in ten components: {difference:.1e}")
