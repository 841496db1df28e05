"""Covariances, and polynomials in the elements of tensors: cov, corrcoef, vander, polyval, polyfit.

They are products and least squares of tensors: :mod:`meshcomm.numpy.contractions.contractions` and meshcomm.linalg
decide what moves.
"""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import tensors_of
from meshcomm.blocks.make import mapped
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._callers import warn
from meshcomm.core._tracing import Value
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.joining.joining import concatenate


def tensors(name: str, *operands: object) -> list[Value]:
    """Return operands as tensors on the mesh of the tensors among them; None stays None.

    Collective if one is a plain array.
    """
    converted_tensors = iter(tensors_of(name, [x for x in operands if x is not None]))
    return [None if x is None else next(converted_tensors) for x in operands]


# -- covariances ------------------------------------------------------------------------------------------------------


@implements(np.cov, partly=True)
def cov(
    m: DTensor | ArrayLike,
    y: DTensor | ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: DTensor | ArrayLike | None = None,
    aweights: DTensor | ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> DTensor:
    """Return the covariances of variables, as numpy.cov: a product of the tensor with itself. Collective.

    Parameters
    ----------
    m: one variable, or a row for each variable
    y: further variables
    rowvar: whether rows are variables; otherwise columns are
    bias: whether to divide by the number of observations instead of one less
    ddof: number to subtract from the number of observations instead
    fweights: number of repetitions of each observation
    aweights: weights of the observations
    dtype: dtype of the result; by default float64 or more

    NumPy's errors and warnings.
    """
    if ddof is not None and ddof != int(ddof):
        raise ValueError("ddof must be integer")
    m_tensor, y_tensor, repeats, weights = tensors("numpy.cov", m, y, fweights, aweights)
    rows = _variable_rows([x for x in (m_tensor, y_tensor) if x is not None], rowvar, dtype)
    if not rows.shape[0]:
        return rows.reshape(0, 0)
    lost_degrees = (0 if bias else 1) if ddof is None else ddof
    combined_weights = _combined_weights(rows.shape[1], repeats, weights)
    if combined_weights is None:
        weight_sum = float(rows.shape[1])
        divisor = weight_sum - lost_degrees
        means = tensor_np.mean(rows, axis=1, keepdims=True)
    else:
        weight_sum = float(np.sum(combined_weights))
        subtrahend = (
            lost_degrees if weights is None else lost_degrees * float(np.sum(combined_weights * weights)) / weight_sum
        )
        divisor = weight_sum - subtrahend
        means = tensor_np.sum(rows * combined_weights, axis=1, keepdims=True) / weight_sum
    if divisor <= 0:
        warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        divisor = 0.0
    deviations = rows - means
    weighted_deviations = deviations if combined_weights is None else deviations * combined_weights
    covariances = (deviations @ tensor_np.conj(weighted_deviations).T) * np.true_divide(1, divisor)
    return tensor_np.squeeze(covariances.astype(rows.dtype, copy=False))


def _variable_rows(arrays: list[DTensor], rowvar: bool, dtype: DTypeLike | None) -> DTensor:
    """Return the variables of one tensor or of two as rows, in the dtype of the result."""
    for x, letter in zip(arrays, "my", strict=False):
        if x.ndim > 2:
            raise ValueError(f"{letter} has more than 2 dimensions")
    out_dtype = np.result_type(*(x.dtype for x in arrays), np.float64) if dtype is None else np.dtype(dtype)
    rows: list[DTensor] = []
    for x in arrays:
        matrix = tensor_np.atleast_2d(x).astype(out_dtype, copy=False)
        is_transposed = not rowvar and (x.ndim == 2 if x is arrays[0] else matrix.shape[0] != 1)
        rows.append(matrix.T if is_transposed else matrix)
    return rows[0] if len(rows) == 1 or not rows[0].shape[0] else concatenate(rows, 0)


def _combined_weights(n: int, repeats: DTensor | None, weights: DTensor | None) -> DTensor | None:
    """Return the product of both weights of *n* observations; None if there are none. NumPy's errors for bad ones."""
    if repeats is not None and bool(np.any(repeats != np.around(repeats))):
        raise TypeError("fweights must be integer")
    for name, values in (("fweights", repeats), ("aweights", weights)):
        if values is None:
            continue
        if values.ndim > 1:
            raise RuntimeError(f"cannot handle multidimensional {name}")
        if values.shape[0] != n:
            raise RuntimeError(f"incompatible numbers of samples and {name}")
        if bool(np.any(values < 0)):
            raise ValueError(f"{name} cannot be negative")
    factors = [values.astype(float) for values in (repeats, weights) if values is not None]
    return None if not factors else factors[0] if len(factors) == 1 else factors[0] * factors[1]


@implements(np.corrcoef, partly=True)
def corrcoef(
    x: DTensor | ArrayLike,
    y: DTensor | ArrayLike | None = None,
    rowvar: bool = True,
    *,
    dtype: DTypeLike | None = None,
) -> DTensor:
    """Return the correlation coefficients of variables, as numpy.corrcoef. Collective.

    Arguments are those of `cov`.
    """
    result = cov(x, y, rowvar, dtype=dtype)
    if result.ndim == 0:
        return result / result
    deviations = tensor_np.sqrt(tensor_np.diagonal(result).real)
    result = result / deviations[:, None] / deviations[None, :]
    if result.dtype.kind != "c":
        return tensor_np.clip(result, -1, 1)
    return tensor_np.clip(result.real, -1, 1) + 1j * tensor_np.clip(result.imag, -1, 1)


# -- polynomials ------------------------------------------------------------------------------------------------------


@implements(np.vander, partly=True)
def vander(x: DTensor, N: int | None = None, increasing: bool = False) -> DTensor:  # noqa: N803 - NumPy's name
    """Return the powers of a vector as columns, as numpy.vander: rows are cut as *x* is.

    *N* is the number of columns, by default the number of elements. The last column has ones; with *increasing* the
    first one.
    """
    (tensor,) = tensors("numpy.vander", x)
    if tensor.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    count = len(tensor) if N is None else N
    dtype = np.vander(np.ones(1, tensor.dtype), count).dtype
    layout, shape = tensor.layout.insert(tensor.ndim), (len(tensor), count)
    return mapped(lambda block: np.vander(block, count, increasing), tensor, layout=layout, shape=shape, dtype=dtype)


@implements(np.polyval, partly=True)
def polyval(p: DTensor | ArrayLike, x: DTensor | ArrayLike) -> DTensor:
    """Return the values of a polynomial, as numpy.polyval. Collective if an operand is a plain array.

    Parameters
    ----------
    p: coefficients, highest power first: all of them are gathered to every rank
    x: points at which to evaluate
    """
    coefficients, (_, points) = allgather_array("numpy.polyval", p), tensors("numpy.polyval", p, x)
    result = tensor_np.zeros_like(points)
    for coefficient in coefficients:
        result = result * points + coefficient
    return result


@implements(np.polyfit, partly=True)
def polyfit(
    x: DTensor | ArrayLike,
    y: DTensor | ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: DTensor | ArrayLike | None = None,
    cov: bool | str = False,
) -> Value:
    """Return the polynomial of degree *deg* that fits points best, as numpy.polyfit. Collective over the mesh.

    Parameters
    ----------
    x, y: coordinates of the points; *y* may have several columns
    deg: degree of the polynomial
    rcond: singular values below this fraction of the largest one count as zero
    full: whether to return residuals, rank, singular values and *rcond*, too
    w: weights of the points
    cov: whether to return the covariances of the coefficients, too; ``"unscaled"`` if weights are known exactly

    Coefficients are on all devices, the one of the highest power first. NumPy's errors and warnings.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     x = mc.distribute(np.arange(6.0), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.round(np.polyfit(x, 3 * x + 1, 1), 6).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [3.0, 1.0]
    """
    order, name = int(deg) + 1, "numpy.polyfit"
    points, values, weights = tensors(name, x, y, w)
    points, values, weights = points + 0.0, values + 0.0, None if w is None else weights + 0.0
    _check_points(points, values, weights, deg)
    if rcond is None:
        rcond = len(points) * np.finfo(points.dtype).eps
    powers = vander(points, order)
    if weights is not None:
        powers = powers * weights[:, None]
        values = values * (weights[:, None] if values.ndim == 2 else weights)
    scale = tensor_np.sqrt(tensor_np.sum(powers * powers, axis=0))
    powers = powers / scale
    coefficients, residuals, rank, s = np.linalg.lstsq(powers, values, rcond)
    coefficients = (coefficients.T / scale).T
    matrix_rank = np.int32(int(rank))
    if matrix_rank != order and not full:
        warn("Polyfit may be poorly conditioned", np.exceptions.RankWarning)
    if full:
        return coefficients, residuals, matrix_rank, s, rcond
    if not cov:
        return coefficients
    unscaled_covariances = tensor_np.linalg.inv(powers.T @ powers) / tensor_np.multiply.outer(scale, scale)
    variance: Value = 1
    if cov != "unscaled":
        if len(points) <= order:
            raise ValueError("the number of data points must exceed order to scale the covariance matrix")
        variance = residuals / (len(points) - order)
    return coefficients, (unscaled_covariances if values.ndim == 1 else unscaled_covariances[:, :, None]) * variance


def _check_points(x: DTensor, y: DTensor, w: DTensor | None, deg: int) -> None:
    """Raise NumPy's error if shapes of the points or the degree do not allow a fit."""
    if deg < 0:
        raise ValueError("expected deg >= 0")
    if x.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if x.size == 0:
        raise TypeError("expected non-empty vector for x")
    if y.ndim < 1 or y.ndim > 2:
        raise TypeError("expected 1D or 2D array for y")
    if x.shape[0] != y.shape[0]:
        raise TypeError("expected x and y to have same length")
    if w is not None and w.ndim != 1:
        raise TypeError("expected a 1-d array for weights")
    if w is not None and w.shape[0] != y.shape[0]:
        raise TypeError("expected w and y to have the same length")
