"""What tests of arithmetic share: meshes, random operands, and the comparison with NumPy on the whole array."""

import numpy as np

import meshcomm as mc

U = mc.UNSHARDED


MESHES = {(2,): 2, (3,): 3, (2, 2): 4, (2, 3): 6, (2, 1, 2): 4}


def mesh_of(*sizes):
    return mc.create_mesh(list(zip("xyz", sizes, strict=False)))


def check(tensor, expected, rtol=1e-12):
    """Compare the block of this rank, and what describes it, with the whole array."""
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    device = tensor.mesh.rank
    if device is None:
        assert tensor.local is None
        return
    assert type(tensor.local) is np.ndarray
    assert tensor.local.flags.c_contiguous
    block = expected[(..., *tensor.layout.block_slices(expected.shape, device))]
    np.testing.assert_allclose(tensor.local, block, rtol=rtol)
    assert tensor.local.shape == block.shape


def random(*shape, dtype="f8"):
    values = np.random.default_rng(sum(shape)).normal(size=shape) * 5
    return np.asarray(values).astype(dtype)
