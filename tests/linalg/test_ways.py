"""Large matrices by the ways that gather none: the front of numpy.linalg with a limit of a few bytes."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.linalg import choose
from support.linalg_cases import DTYPES, alike, matrices, tensors_of
from support.sampling import sampled
from support.tensors import on_a_mesh


@pytest.fixture
def nothing_is_small(monkeypatch):
    monkeypatch.setattr(choose, "SMALL_MATRICES", 0)


def _is_qr(found, array):
    q, r = (each.to_numpy() for each in found)
    expected_q, expected_r = np.linalg.qr(array)
    eps = 300 * np.finfo(q.dtype).eps
    np.testing.assert_allclose(r, expected_r, atol=eps * abs(expected_r).max())
    np.testing.assert_allclose(q, expected_q, atol=eps * 10)


def _is_svd(found, array):
    u, s, vh = (each.to_numpy() for each in found)
    eps = 300 * np.finfo(u.dtype).eps
    np.testing.assert_allclose(s, np.linalg.svd(array, compute_uv=False), atol=eps * s.max())
    np.testing.assert_allclose((u * s) @ vh, array, atol=eps * s.max())


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("seed", sampled(range(20), 5))
def test_tall_matrices(seed):
    rng = np.random.default_rng(seed)
    shape = [(40, 3), (3, 40), (40, 3), (1, 40, 5)][seed % 4]
    a = matrices(rng, *shape, dtype=DTYPES[seed % 5])
    low = a.copy()
    low[..., -1] = low[..., 0]
    b = matrices(rng, shape[-2], 2) if seed % 3 else matrices(rng, shape[-2])

    def program(random, mesh):
        t, deficient, right = tensors_of(random, mesh, [a, low, b])
        if not any(mesh.dim_size(name) > 1 for spec in t.layout.axes for name in spec):
            t, deficient = (
                mc.relayout(x, mc.Layout(["unsharded"] * (a.ndim - 2) + ["x", "unsharded"], mesh))
                for x in (t, deficient)
            )
        assert mc.linalg.plan("qr", t).way in ("tall", "stacks")
        if shape[-2] > shape[-1]:
            _is_qr(np.linalg.qr(t), a)
        alike(abs(np.linalg.qr(t, "r")), abs(np.linalg.qr(a, "r")), scale=10)
        _is_svd(np.linalg.svd(t, full_matrices=False), a)
        alike(np.linalg.svdvals(t), np.linalg.svdvals(a), scale=10)
        alike(np.linalg.pinv(t), np.linalg.pinv(a), scale=10)
        alike(np.linalg.cond(t), np.linalg.cond(a), scale=100)
        alike(np.linalg.norm(t, "nuc", axis=(-2, -1)), np.linalg.norm(a, "nuc", axis=(-2, -1)), scale=10)
        alike(np.linalg.matrix_rank(deficient), np.linalg.matrix_rank(low))
        if a.ndim == 2:
            alike(np.linalg.lstsq(t, right), np.linalg.lstsq(a, b), scale=1000)

    on_a_mesh(seed, program)
