"""What tests of arithmetic share: meshes, random operands, and the comparison with NumPy on the whole array."""

import numpy as np

import meshcomm as mc
from support.reference import block_of

U = mc.UNSHARDED


MESHES = {(2,): 2, (3,): 3, (2, 2): 4, (2, 3): 6, (2, 1, 2): 4}


def mesh_of(*sizes):
    return mc.create_mesh(list(zip("xyz", sizes, strict=False)))


def check(tensor, expected, rtol=1e-12, exact=None):
    """Compare the block of this rank, and what describes it, with the whole array; *exact* compares two blocks."""
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    device = tensor.mesh.rank
    if device is None:
        assert tensor.local is None
        return
    assert type(tensor.local) is np.ndarray
    assert tensor.local.flags.c_contiguous or tensor._view is not None
    block = block_of(expected, tensor.layout, device)
    assert tensor.local.shape == block.shape
    if exact is None:
        np.testing.assert_allclose(tensor.local, block, rtol=rtol)
    else:
        exact(tensor.local, block)


def random(*shape, dtype="f8"):
    values = np.random.default_rng(sum(shape)).normal(size=shape) * 5
    return np.asarray(values).astype(dtype)
