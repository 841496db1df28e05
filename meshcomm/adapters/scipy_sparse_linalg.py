"""In a script of NumPy, SciPy's sparse solvers get arrays in place of tensors, as they are written in C."""

from collections.abc import Callable
from functools import wraps

from scipy.sparse import linalg

from meshcomm.adapters.whole_arguments import of_arrays, whole
from meshcomm.core._tracing import Value
from meshcomm.core.arrays.scripted import is_scripted


class _Factors:
    """A factorization of SciPy that also solves systems with tensors as right-hand sides."""

    def __init__(self, factors: Value) -> None:
        self._factors = factors

    def solve(self, rhs: Value, trans: str = "N") -> Value:
        return self._factors.solve(whole(rhs), trans)

    def __getattr__(self, name: str) -> Value:
        return getattr(self._factors, name)


def _solver_of(factorize: Callable[..., object], convert: Callable[[Value], object]) -> Callable[..., object]:
    @wraps(factorize)
    def wrapper(*args: object, **kwargs: object) -> object:
        return convert(factorize(*map(whole, args), **kwargs))

    return wrapper


if is_scripted():
    linalg.splu, linalg.spilu = _solver_of(linalg.splu, _Factors), _solver_of(linalg.spilu, _Factors)
    linalg.factorized = _solver_of(linalg.factorized, of_arrays)
