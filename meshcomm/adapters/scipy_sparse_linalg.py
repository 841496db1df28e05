"""What SciPy's sparse solvers get in a script of NumPy: arrays where the script has tensors, as they are written in C."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from scipy.sparse import linalg

from meshcomm.adapters.whole_arguments import of_arrays, whole
from meshcomm.core.arrays.scripted import is_scripted


class _Factors:
    """A factorization of SciPy, which solves systems with tensors on their right, too."""

    def __init__(self, factors: Any) -> None:
        self._factors = factors

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        return self._factors.solve(whole(rhs), trans)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factors, name)


def _solving(make: Callable[..., Any], solver: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        return solver(make(*map(whole, args), **kwargs))

    return made


if is_scripted():
    linalg.splu, linalg.spilu = _solving(linalg.splu, _Factors), _solving(linalg.spilu, _Factors)
    linalg.factorized = _solving(linalg.factorized, of_arrays)
