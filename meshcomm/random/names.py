"""The names of numpy.random for `meshcomm.numpy`: one stream of numbers for all ranks, cut by the rule of creation.

The numbers are those of `meshcomm.random`, the same on any number of ranks, and not NumPy's. Without a seed, rank 0
draws one for all.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, BitGenerator, Philox, SeedSequence

from meshcomm.blocks.small import looked_up
from meshcomm.core._types import DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.namespace.devices import layout_on
from meshcomm.numpy.namespace.making import for_program, home
from meshcomm.random import distributions, generator

NAMES = frozenset(np.random.__all__)


class Generator(generator.Generator, np.random.Generator):  # type: ignore[misc]  # its methods take layouts, too
    """Random tensors in the layouts of the rule: see `default_rng`. Libraries take it for a generator of NumPy."""

    def __init__(self, bit_generator: Any) -> None:
        super().__init__(_seeds(bit_generator) if isinstance(bit_generator, BitGenerator) else bit_generator)
        np.random.Generator.__init__(self, Philox(self._seeds))

    __reduce__ = object.__reduce__  # type: ignore[assignment]  # as ours is pickled

    def _layout_of(self, shape: Shape, dtype: DType) -> Layout:
        return layout_on(None, shape, dtype)


def _for_scripts(name: str) -> Callable[..., Any]:
    """Return the method *name* of generators for scripts too, which have arrays of NumPy where nothing is cut.

    An array that is drawn into, or whose elements are put into another order, is a tensor in the method: so the
    numbers are the same on any number of ranks.
    """
    method = getattr(generator.Generator, name)

    @wraps(method)
    def drawn(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = home()
        if not here.everyone or kwargs.get("layout") is not None:
            return _with_objects(self, method, *args, **kwargs)
        written: Any = args[0] if name == "shuffle" and args else kwargs.get("x" if name == "shuffle" else "out")
        tensor = here.make(written) if isinstance(written, np.ndarray) and not written.dtype.hasobject else None
        if tensor is not None:
            args = tuple(tensor if x is written else x for x in args)
            kwargs = {key: tensor if x is written else x for key, x in kwargs.items()}
        result = _with_objects(self, method, *args, **kwargs)
        if tensor is None:
            return for_program(result) if isinstance(result, DTensor) else result
        if not written.flags.c_contiguous:  # it has another order in memory
            written[...] = tensor.to_numpy()
        return written if result is tensor else result

    return drawn


def _with_objects(rng: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a *method* makes; rows of an array of objects, which no tensor has, by their indices."""
    first = args[0] if args and method.__name__ in ("permutation", "choice") else None
    if not isinstance(first, list | tuple | np.ndarray) or not np.asarray(first).dtype.hasobject:
        return method(rng, *args, **kwargs)
    rows = np.asarray(first)
    return np.take(rows, np.asarray(method(rng, len(rows), *args[1:], **kwargs)), 0)


for _name in (*vars(distributions.Distributions), "permutation", "shuffle", "permuted", "choice"):
    if _name[0] != "_":
        setattr(Generator, _name, _for_scripts(_name))


def default_rng(seed: object = None) -> Generator:
    """Return a generator of random tensors, with the methods of numpy.random.Generator.

    Without a *seed* it is Collective: rank 0 draws one for all.
    """
    if isinstance(seed, Generator):
        return seed
    return Generator(_seed_of_root(lambda: SeedSequence()) if seed is None else seed)


def _seeds(bit_generator: Any) -> SeedSequence:
    """Return the seeds of a generator of NumPy on rank 0. Collective, as other ranks may have drawn others."""
    return _seed_of_root(lambda: bit_generator.seed_seq)


def _seed_of_root(seeds: Any) -> SeedSequence:
    def drawn() -> Any:
        found = seeds()
        return [np.asarray(found.entropy).tolist(), list(map(int, found.spawn_key))]

    told = looked_up("numpy.random", mesh_of_program(), "a seed for random numbers", drawn)
    entropy, key = drawn() if told is None else told
    return SeedSequence(entropy, spawn_key=tuple(key))


class RandomState:
    """The old interface of numpy.random: its functions are the methods of one of these."""

    def __init__(self, seed: object = None) -> None:
        self._generator = default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_" or name not in NAMES:
            raise AttributeError(f"numpy.random.RandomState has no attribute {name!r}")
        return getattr(self._generator, name)

    def seed(self, seed: Any = None) -> None:
        """Begin the stream of this *seed*; Collective without one. Numbers that libraries draw begin anew, too."""
        self._generator = default_rng(seed)
        np.random.seed([*self._generator.bytes(4)] if seed is None else seed)

    def get_state(self, legacy: bool = True) -> dict[str, Any]:
        """Return what the next numbers depend on, for `set_state`."""
        return self._generator.state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._generator.state = state

    def random_sample(self, size: Any = None) -> Any:
        """Draw floats that are uniform in [0, 1)."""
        return self._generator.random(size)

    random = ranf = sample = random_sample

    def rand(self, *shape: int) -> Any:
        """Draw floats that are uniform in [0, 1), in an array of this *shape*."""
        return self._generator.random(shape or None)

    def randn(self, *shape: int) -> Any:
        """Draw from the standard normal distribution, in an array of this *shape*."""
        return self._generator.standard_normal(shape or None)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Draw integers from *low* to below *high*, or below *low* if *high* is None."""
        made = self._generator.integers(low, high, size, dtype)
        return int(made) if size is None and dtype is int and np.ndim(made) == 0 else made

    def random_integers(self, low: Any, high: Any = None, size: Any = None) -> Any:
        """Draw integers from *low* to *high*, or from 1 to *low* if *high* is None."""
        first, last = (1, low) if high is None else (low, high)
        return self._generator.integers(first, last, size, endpoint=True)


_states: WeakKeyDictionary[object, RandomState] = WeakKeyDictionary()
"""By worlds, as each rank sees its own."""


def _state() -> RandomState:
    """Return the state of the functions of the module, of this rank. Collective when it is first needed."""
    world = mesh_of_program().world.here()
    if world not in _states:
        _states[world] = RandomState()
    return _states[world]


_KINDS = {each.__name__: each for each in (MT19937, PCG64, PCG64DXSM, SFC64, BitGenerator, Philox, SeedSequence)}


def named(name: str) -> Any:
    """Return what *name* of numpy.random is in `meshcomm.numpy`."""
    if name in _KINDS:
        return _KINDS[name]
    if name in ("Generator", "RandomState", "default_rng"):
        return globals()[name]

    def function(*args: object, **kwargs: object) -> Any:
        return getattr(_state(), name)(*args, **kwargs)

    function.__name__, function.__doc__ = name, getattr(np.random, name).__doc__
    return function
