"""Distributions: the methods of numpy.random.Generator that draw independent elements or vectors."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.random import Generator as NumpyGenerator
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core._arguments import as_array, as_integer, as_shape
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.random.drawing import DrawResult, GeneratorBase, Size, Values, Where


def _parameter_array(parameter: ArrayLike) -> Array:
    """Return a parameter of vectors as an array. Collective if it is a tensor."""
    return as_array(parameter.to_numpy() if isinstance(parameter, DTensor) else parameter)


class Distributions(GeneratorBase):
    """The distributions of a `Generator`.

    Arguments are NumPy's, and ``layout=``: the layout of the result, by default that of `meshcomm.zeros`. If all
    parameters are numbers, and there is no ``size=`` and no ``layout=``, the result is one number, the same on all
    ranks. Parameters broadcast. They may be arrays that are the same on all ranks, or tensors: then the result has the
    layout of an elementwise function of them, and the method is Collective.
    """

    # -- uniform and standard ones: NumPy draws them into the block ---------------------------------------------------

    def random(
        self, size: Size = None, dtype: DTypeLike = np.float64, out: DTensor | None = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw floats that are uniform in [0, 1).

        Parameters
        ----------
        size: the shape of the result
        dtype: float64 or float32
        out: a tensor to fill and return
        layout: layout of the result

        >>> import meshcomm as mc
        >>> def program(cut):
        ...     layout = mc.Layout([cut], mc.create_mesh([("x", 2)]))
        ...     return mc.random.default_rng(7).random(3, layout=layout).to_numpy().tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program, "x") == world.run(program, mc.UNSHARDED))
        True
        """
        return self._draw("random", (), size, layout, dtype=dtype, out=out)

    def standard_normal(
        self, size: Size = None, dtype: DTypeLike = np.float64, out: DTensor | None = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from the normal distribution of mean 0 and standard deviation 1. Parameters are those of `random`.

        >>> import meshcomm as mc
        >>> layout = mc.Layout([mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.random.default_rng(7).standard_normal(3, "f4", layout=layout).dtype
        dtype('float32')
        """
        return self._draw("standard_normal", (), size, layout, dtype=dtype, out=out)

    def standard_exponential(
        self,
        size: Size = None,
        dtype: DTypeLike = np.float64,
        method: str = "zig",
        out: DTensor | None = None,
        *,
        layout: Where = None,
    ) -> DrawResult:
        """Draw from the exponential distribution of scale 1. *method* is "zig" or "inv"; else as `random`.

        >>> import meshcomm as mc
        >>> mc.random.default_rng(7).standard_exponential() >= 0
        True
        """
        return self._draw("standard_exponential", (), size, layout, dtype=dtype, method=method, out=out)

    def standard_gamma(
        self,
        shape: Values,
        size: Size = None,
        dtype: DTypeLike = np.float64,
        out: DTensor | None = None,
        *,
        layout: Where = None,
    ) -> DrawResult:
        """Draw from gamma distributions of scale 1, with the parameter *shape*. Others are those of `random`.

        >>> import meshcomm as mc
        >>> mc.random.default_rng(7).standard_gamma(2.0) >= 0
        True
        """
        return self._draw("standard_gamma", (shape,), size, layout, dtype=dtype, out=out)

    def integers(
        self,
        low: Values,
        high: Values | None = None,
        size: Size = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,
        *,
        layout: Where = None,
    ) -> DrawResult:
        """Draw integers from *low* to below *high*, or to *high* with *endpoint*; from 0 to *low* if *high* is None.

        Parameters
        ----------
        low, high: the bounds
        size: the shape of the result
        dtype: any integers, or bool
        endpoint: whether *high* may be drawn as well
        layout: layout of the result

        >>> import meshcomm as mc
        >>> mc.random.default_rng(7).integers(3) in range(3)
        True
        """
        if low is None:
            raise TypeError("integers: low must be an integer, not None")
        bounds = (0, low) if high is None else (low, high)
        return self._draw("integers", bounds, size, layout, dtype=dtype, endpoint=endpoint)

    # -- one distribution for each element ----------------------------------------------------------------------------

    def normal(self, loc: Values = 0.0, scale: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from normal distributions of mean *loc* and standard deviation *scale*."""
        return self._draw("normal", (loc, scale), size, layout)

    def uniform(self, low: Values = 0.0, high: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from uniform distributions from *low* to *high*."""
        return self._draw("uniform", (low, high), size, layout)

    def exponential(self, scale: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from exponential distributions of mean *scale*."""
        return self._draw("exponential", (scale,), size, layout)

    def gamma(self, shape: Values, scale: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from gamma distributions, with the parameters *shape* and *scale*."""
        return self._draw("gamma", (shape, scale), size, layout)

    def beta(self, a: Values, b: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from beta distributions, with the parameters *a* and *b*."""
        return self._draw("beta", (a, b), size, layout)

    def lognormal(
        self, mean: Values = 0.0, sigma: Values = 1.0, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from log-normal distributions: *mean* and standard deviation *sigma* are those of the logarithm."""
        return self._draw("lognormal", (mean, sigma), size, layout)

    def laplace(
        self, loc: Values = 0.0, scale: Values = 1.0, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from Laplace's distributions around *loc*."""
        return self._draw("laplace", (loc, scale), size, layout)

    def logistic(
        self, loc: Values = 0.0, scale: Values = 1.0, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from logistic distributions around *loc*."""
        return self._draw("logistic", (loc, scale), size, layout)

    def gumbel(self, loc: Values = 0.0, scale: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Gumbel's distributions around *loc*."""
        return self._draw("gumbel", (loc, scale), size, layout)

    def rayleigh(self, scale: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Rayleigh's distributions of mode *scale*."""
        return self._draw("rayleigh", (scale,), size, layout)

    def weibull(self, a: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Weibull's distributions, with the parameter *a*."""
        return self._draw("weibull", (a,), size, layout)

    def pareto(self, a: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Pareto's second distributions, with the parameter *a*."""
        return self._draw("pareto", (a,), size, layout)

    def power(self, a: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from distributions on [0, 1] with the density a x ** (a - 1)."""
        return self._draw("power", (a,), size, layout)

    def triangular(
        self, left: Values, mode: Values, right: Values, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from triangular distributions from *left* to *right*, with their mode at *mode*."""
        return self._draw("triangular", (left, mode, right), size, layout)

    def vonmises(self, mu: Values, kappa: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from von Mises' distributions of angles around *mu*, with the dispersion *kappa*."""
        return self._draw("vonmises", (mu, kappa), size, layout)

    def wald(self, mean: Values, scale: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Wald's distributions, the inverse Gaussian ones."""
        return self._draw("wald", (mean, scale), size, layout)

    def chisquare(self, df: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from chi-square distributions with *df* degrees of freedom."""
        return self._draw("chisquare", (df,), size, layout)

    def noncentral_chisquare(self, df: Values, nonc: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from noncentral chi-square distributions."""
        return self._draw("noncentral_chisquare", (df, nonc), size, layout)

    def f(self, dfnum: Values, dfden: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from F distributions with *dfnum* and *dfden* degrees of freedom."""
        return self._draw("f", (dfnum, dfden), size, layout)

    def noncentral_f(
        self, dfnum: Values, dfden: Values, nonc: Values, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from noncentral F distributions."""
        return self._draw("noncentral_f", (dfnum, dfden, nonc), size, layout)

    def standard_t(self, df: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Student's t distributions with *df* degrees of freedom."""
        return self._draw("standard_t", (df,), size, layout)

    def standard_cauchy(self, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Cauchy's distribution around 0."""
        return self._draw("standard_cauchy", (), size, layout)

    def poisson(self, lam: Values = 1.0, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Poisson's distributions of mean *lam*."""
        return self._draw("poisson", (lam,), size, layout)

    def binomial(self, n: Values, p: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from binomial distributions: the number of successes in *n* trials, each with probability *p*."""
        return self._draw("binomial", (n, p), size, layout)

    def negative_binomial(self, n: Values, p: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from negative binomial distributions: the number of failures before *n* successes."""
        return self._draw("negative_binomial", (n, p), size, layout)

    def geometric(self, p: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from geometric distributions: the number of trials until the first success."""
        return self._draw("geometric", (p,), size, layout)

    def hypergeometric(
        self, ngood: Values, nbad: Values, nsample: Values, size: Size = None, *, layout: Where = None
    ) -> DrawResult:
        """Draw from hypergeometric distributions: the number of good elements among *nsample* drawn ones."""
        return self._draw("hypergeometric", (ngood, nbad, nsample), size, layout)

    def logseries(self, p: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from logarithmic series distributions."""
        return self._draw("logseries", (p,), size, layout)

    def zipf(self, a: Values, size: Size = None, *, layout: Where = None) -> DrawResult:
        """Draw from Zipf's distributions, with the parameter *a*."""
        return self._draw("zipf", (a,), size, layout)

    # -- distributions of vectors: their axis is the last one of the result -------------------------------------------

    def multivariate_normal(
        self,
        mean: ArrayLike,
        cov: ArrayLike,
        size: Size = None,
        check_valid: Literal["raise", "warn", "ignore"] = "warn",
        tol: float = 1e-8,
        *,
        method: Literal["svd", "eigh", "cholesky"] = "svd",
        layout: Where = None,
    ) -> DTensor:
        """Draw vectors from the normal distribution of *mean* and covariance *cov*; NumPy's errors and warnings.

        Parameters
        ----------
        mean, cov: arrays that are the same on all ranks
        size: shape of the vectors; by default one vector
        check_valid: "warn", "raise" or "ignore" if *cov* is not symmetric and positive semidefinite
        tol: tolerance of this check
        method: decomposition of *cov* on each rank: "svd", "eigh" or "cholesky"
        layout: layout of the result, with the axis of the vectors

        >>> import meshcomm as mc
        >>> layout = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.random.default_rng(7).multivariate_normal([0, 1], [[2, 1], [1, 2]], 5, layout=layout).shape
        (5, 2)
        """
        mean_array, cov_array = _parameter_array(mean), _parameter_array(cov)
        numpy_method = self._streams.at(self._call).multivariate_normal
        numpy_method(mean_array, cov_array, check_valid=check_valid, tol=tol, method=method)  # NumPy's checks
        factor = _cov_factor(np.asarray(cov_array, np.float64), method)

        def draw(generator: NumpyGenerator, size: tuple[int, ...]) -> Array:
            return generator.standard_normal((*size, len(mean_array))) @ factor.T + mean_array

        return self._vectors(draw, len(mean_array), size, np.float64, layout)

    def dirichlet(self, alpha: ArrayLike, size: Size = None, *, layout: Where = None) -> DTensor:
        """Draw vectors from Dirichlet's distribution. *alpha* is an array that is the same on all ranks."""
        return self._vectors_by_method("dirichlet", (_parameter_array(alpha),), np.size(alpha), size, layout)

    def multinomial(self, n: int, pvals: ArrayLike, size: Size = None, *, layout: Where = None) -> DTensor:
        """Draw the counts of outcomes with the probabilities *pvals* in *n* trials."""
        parameters = (as_integer(n, "n", TypeError), _parameter_array(pvals))
        return self._vectors_by_method("multinomial", parameters, np.size(pvals), size, layout)

    def multivariate_hypergeometric(
        self,
        colors: Sequence[int],
        nsample: int,
        size: Size = None,
        method: str = "marginals",
        *,
        layout: Where = None,
    ) -> DTensor:
        """Draw the numbers of each color among *nsample* draws from *colors*, the numbers of each color.

        Parameters
        ----------
        colors: an array that is the same on all ranks
        nsample: number of draws
        size: shape of the vectors; by default one vector
        method: "marginals" or "count"
        layout: layout of the result, with the axis of the vectors
        """
        parameters = (_parameter_array(colors), nsample)
        return self._vectors_by_method(
            "multivariate_hypergeometric", parameters, np.size(colors), size, layout, method=method
        )

    def _vectors_by_method(
        self, name: str, parameters: tuple[object, ...], length: int, size: Size, layout: Where, **options: object
    ) -> DTensor:
        sample = getattr(self._streams.at(self._call), name)(*parameters, **options)  # NumPy's checks
        if sample.ndim != 1:
            raise ValueError(f"{name}: one distribution for all vectors: parameters of one axis, not more")
        return self._vectors(
            lambda generator, size: getattr(generator, name)(*parameters, size=size, **options),
            length,
            size,
            sample.dtype,
            layout,
        )

    def _vectors(
        self,
        draw: Callable[[NumpyGenerator, tuple[int, ...]], Array],
        length: int,
        size: Size,
        dtype: DTypeLike,
        layout: Where,
    ) -> DTensor:
        """Return vectors of *length* drawn by *draw*, a function of NumPy's generator and the shape of the vectors."""
        shape = (*(() if size is None else as_shape(size)), length)

        def draw_tile(generator: NumpyGenerator, global_slices: tuple[slice, ...], out: Array | None) -> Array:
            return draw(generator, tuple(slice_.stop - slice_.start for slice_ in global_slices[:-1]))

        return self._fill_tensor(None, shape, dtype, layout, draw_tile, whole_axes=1)


def _cov_factor(cov: Array, method: str) -> Array:
    """Return a matrix F with ``F @ F.T = cov``, computed as in NumPy."""
    if method == "cholesky":
        return np.linalg.cholesky(cov)
    if method == "eigh":
        values, vectors = np.linalg.eigh(cov)
    else:
        vectors, values, _ = np.linalg.svd(cov)
    return vectors * np.sqrt(np.abs(values) if method == "eigh" else values)
