"""Meshes for tests."""

import numpy as np

from meshcomm.layouts.mesh import Mesh


def grid(*sizes, name=""):
    names = "xyzw"[: len(sizes)]
    return Mesh(range(int(np.prod(sizes))), list(zip(names, sizes, strict=True)), name)
