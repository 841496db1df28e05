"""Factors of matrices with one short side, by a tree of QR factorisations: see :mod:`meshcomm.linalg.tree`.

Arguments are tensors of float32, float64, complex64 or complex128, with two axes, in any layouts. Results with the
long side are cut along it, by all mesh dimensions that cut the argument; all other results are replicated, with the
same bits on all devices. A wide matrix is transposed, except for `qr`. Ranks outside of the mesh have no block.
"""

from typing import Literal, overload

import numpy as np

from meshcomm.blocks.make import indices_along, mapped, on_blocks
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.linalg.reflectors import arithmetic
from meshcomm.linalg.tree import DeviceResult, RootResults, Small, TallMatrix, cut_along


@overload
def qr(t: DTensor, mode: Literal["reduced"] = "reduced") -> tuple[DTensor, DTensor]: ...
@overload
def qr(t: DTensor, mode: Literal["r"]) -> DTensor: ...
def qr(t: DTensor, mode: str = "reduced") -> DTensor | tuple[DTensor, DTensor]:
    """Return Q and R of a matrix, or with mode ``"r"`` R only, with NumPy's signs. Collective over the mesh.

    Q is cut along its rows, R is replicated. Of a wide matrix Q is replicated, and R is cut along its columns.
    """
    if t.shape[0] < t.shape[1]:
        q, r = _qr_of_wide(t)
        return r if mode == "r" else (q, r)
    n = t.shape[1]

    def work(top: RootResults) -> Small:
        r = np.triu(top.signs[:, None] * top.r)
        return np.diag(top.signs)[:, : n if mode == "reduced" else 0], r

    tall = TallMatrix("qr", t, signed=True)
    tall.climb()
    q, (r,) = tall.descend(work, n if mode == "reduced" else 0, [DeviceResult((n, n))])
    return r if mode == "r" else (q, r)


@overload
def svd(t: DTensor, compute_uv: Literal[True] = True) -> tuple[DTensor, DTensor, DTensor]: ...
@overload
def svd(t: DTensor, compute_uv: Literal[False]) -> DTensor: ...
def svd(t: DTensor, compute_uv: bool = True) -> DTensor | tuple[DTensor, DTensor, DTensor]:
    """Return the factors U, s and Vh, or s only, as numpy.linalg.svd without full matrices. Collective over the mesh.

    The factor with the long side is cut along it, the others are replicated. ``numpy.linalg.LinAlgError`` on all ranks
    if the algorithm does not converge.
    """
    if t.shape[0] < t.shape[1]:
        if not compute_uv:
            return svd(_adjoint(t), compute_uv=False)
        u, s, vh = svd(_adjoint(t))
        return _adjoint(vh), s, _adjoint(u)
    n = t.shape[1]

    def work(top: RootResults) -> Small:
        return tuple(np.linalg.svd(top.r)) if compute_uv else (_NOTHING, np.linalg.svd(top.r, compute_uv=False))

    tall = TallMatrix("svd", t)
    tall.climb()
    if not compute_uv:
        return tall.descend(work, 0, [DeviceResult((n,), real=True)])[1][0]
    u, (s, vh) = tall.descend(work, n, [DeviceResult((n,), real=True), DeviceResult((n, n))])
    return u, s, vh


def lstsq(a: DTensor, b: DTensor, rcond: float | None = None) -> tuple[DTensor, DTensor, int, DTensor]:
    """Return a solution of least squares, residuals, rank and singular values, as numpy.linalg.lstsq. Collective.

    The solution of a tall matrix is replicated, that of a wide one is cut along its rows. On ranks outside of the mesh
    the rank is 0, and there are no residuals.

    Parameters
    ----------
    a: a matrix
    b: one or several right sides, of the dtype of *a* and on its mesh
    rcond: singular values up to *rcond* times the largest one count as zero
    """
    rhs = b if b.ndim == 2 else _as_column(b, (len(b), 1))
    x, residuals, rank, s = (_lstsq_of_tall if a.shape[0] >= a.shape[1] else _lstsq_of_wide)(a, rhs, rcond)
    if rank != a.shape[1] or a.shape[0] <= a.shape[1]:
        residuals = mapped(lambda block: block[:0].copy(), residuals, shape=(0,))
    return x if b.ndim == 2 else _as_column(x, x.shape[:1]), residuals, rank, s


def pinv(t: DTensor, rcond: float) -> DTensor:
    """Return the pseudo-inverse of a matrix, as numpy.linalg.pinv. Collective over the mesh.

    It is cut along its long side. Singular values up to *rcond* times the largest one count as zero.
    """
    is_wide = t.shape[0] < t.shape[1]
    tall = TallMatrix("pinv", _adjoint(t) if is_wide else t)
    n = tall.shape[1]

    def work(top: RootResults) -> Small:
        u, s, vh = np.linalg.svd(top.r)
        return ((u * _inverses(s, s > rcond * s.max(initial=0))) @ vh,)

    tall.climb()
    inverse, _ = tall.descend(work, n, [])
    return inverse if is_wide else _adjoint(inverse)


# -- helpers ----------------------------------------------------------------------------------------------------------

_NOTHING = np.empty(0)
_RANK = DeviceResult(())


def _inverses(s: Array, is_nonzero: Array) -> Array:
    return np.divide(1, s, where=is_nonzero, out=np.zeros_like(s))


def _inverses_and_rank(s: Array, rcond: float | None, shape: Shape) -> tuple[Array, Array]:
    """Return the inverses of singular values, 0 for those that count as zero, and the number of the others."""
    if rcond is None:
        rcond = float(np.finfo(float).eps) * max(shape)
    elif not 0 < rcond < 1:  # as in LAPACK's gelsd
        rcond = float(np.finfo(float).eps) / 2
    is_nonzero = s > rcond * s.max(initial=0)
    return _inverses(s, is_nonzero), np.asarray(is_nonzero.sum())


def _lstsq_of_tall(a: DTensor, b: DTensor, rcond: float | None) -> tuple[DTensor, DTensor, int, DTensor]:
    tall = TallMatrix("lstsq", a)
    n, columns = a.shape[1], b.shape[1]

    def work(top: RootResults) -> Small:
        u, s, vh = np.linalg.svd(top.r)
        inverses, rank = _inverses_and_rank(s, rcond, a.shape)
        x = vh.conj().T @ (inverses[:, None] * (u.conj().T @ top.right))
        return _NOTHING, x, top.rest, rank, s

    tall.climb(b)
    results = [DeviceResult((n, columns)), DeviceResult((columns,), real=True), _RANK, DeviceResult((n,), real=True)]
    x, residuals, rank, s = tall.descend(work, 0, results)[1]
    return x, residuals, _as_int(rank), s


def _lstsq_of_wide(a: DTensor, b: DTensor, rcond: float | None) -> tuple[DTensor, DTensor, int, DTensor]:
    """The solution is Q of the adjoint times the solution of a small problem, so its norm is minimal."""
    tall = TallMatrix("lstsq", _adjoint(a))
    rhs, m = tall.at_root(b), a.shape[0]

    def work(top: RootResults) -> Small:
        u, s, vh = np.linalg.svd(top.r)
        inverses, rank = _inverses_and_rank(s, rcond, a.shape)
        return u @ (inverses[:, None] * (vh @ rhs._block)), rank, s, np.empty(0)

    tall.climb()
    x, (rank, s, residuals) = tall.descend(
        work, b.shape[1], [_RANK, DeviceResult((m,), real=True), DeviceResult((0,), real=True)]
    )
    return x, residuals, _as_int(rank), s


def _qr_of_wide(t: DTensor) -> tuple[DTensor, DTensor]:
    """Q comes from the first columns, which are square, and R is the product of its adjoint and the matrix."""
    m = t.shape[0]
    q = _qr_of_square(t[:, :m])
    columns = cut_along(t, 1)

    def triangle(block: Array, q: Array) -> Array:
        work_dtype = arithmetic(t.dtype)
        r = q.astype(work_dtype).conj().T @ block.astype(work_dtype)
        r[np.arange(m)[:, None] > indices_along(columns.layout, t.shape, 1)] = 0
        return np.asarray(r, t.dtype)

    return q, mapped(triangle, columns, q)


def _qr_of_square(t: DTensor) -> DTensor:
    """Return Q of a small matrix, from one device."""
    single = relayout(t, Layout.replicated(t.mesh.of_ranks(t.mesh.ranks[:1], {"device": 1}), 2))

    def q(block: Array) -> Array:
        return np.linalg.qr(block.astype(arithmetic(t.dtype)))[0].astype(t.dtype)

    factor = agree_on_result("linalg.qr", t.mesh, f"linalg.qr of {t.shape} {t.dtype}", lambda: mapped(q, single))
    return relayout(factor, Layout.replicated(t.mesh, 2))


def _adjoint(t: DTensor) -> DTensor:
    """Return the conjugate transpose, as a copy, cut as *t* is."""
    return mapped(lambda block: block.T.conj(), t, layout=t.layout.take(range(t.ndim)[::-1]), shape=t.shape[::-1])


def _as_column(t: DTensor, shape: Shape) -> DTensor:
    """Return a vector as a matrix of one column, or the vector again."""
    axes = (*t.layout.axes[:1], *[()] * (len(shape) - 1))
    return mapped(lambda block: block.reshape(len(block), *shape[1:]), t, layout=Layout(axes, t.mesh), shape=shape)


def _as_int(rank: DTensor) -> int:
    return on_blocks(lambda block: int(block.real), rank) or 0
