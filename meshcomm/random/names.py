"""The names of numpy.random for `meshcomm.numpy`: small draws are NumPy's own, large ones are cut.

A draw of less than 1 MiB (`WHOLE_BELOW`) is the same array on every rank: NumPy's own generator makes it, so with a
seed the numbers are NumPy's. Larger draws are made block by block, by `meshcomm.random`, from streams of the same
seed. Both are the same on any number of ranks. Without a seed, rank 0 draws a seed for all ranks.
"""

from functools import wraps
from inspect import signature
from math import prod
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, BitGenerator, Philox, SeedSequence
from numpy.random.mtrand import get_bit_generator
from numpy.typing import DTypeLike

from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.elementwise.signatures import Function
from meshcomm.numpy.namespace.arrays import WholeArray
from meshcomm.numpy.namespace.devices import layout_on
from meshcomm.numpy.namespace.making import for_program, from_small, in_script, new_arrays_are_on_all_ranks
from meshcomm.numpy.namespace.rule import WHOLE_BELOW
from meshcomm.numpy.namespace.small_arrays import small_arrays
from meshcomm.random import generator
from meshcomm.random.drawing import DrawResult, GeneratorState, Seed, Size, Values

State: TypeAlias = GeneratorState | tuple[Any, ...]
"""A state of `RandomState`, or of NumPy's."""
NumpySeed: TypeAlias = Seed | Array | BitGenerator | np.random.Generator | np.random.RandomState | None
"""A seed as numpy.random.default_rng takes it."""

NAMES = frozenset(np.random.__all__)

_NUMBER_TYPES = frozenset((int, float, bool, type(None)))
_LENGTH_METHODS = ("permutation", "permuted", "shuffle", "choice")
_ORDER_METHODS = ("permutation", "permuted", "shuffle")
_VECTOR_METHODS = ("multinomial", "dirichlet", "multivariate_normal", "multivariate_hypergeometric")
_LARGE_COUNT = WHOLE_BELOW // 8  # elements: a draw of this many is large
_TILE_SPAWN_KEY = 0x6D657368  # spawn key of the child of a seed, which has the streams of tiles of large draws


# -- which draws are small --------------------------------------------------------------------------------------------


def _is_small(name: str, size_position: int | None, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether draws and arguments of method *name* are smaller than `WHOLE_BELOW`, by the arguments only.

    *size_position* is the position of the argument ``size``; None without one.
    """
    # The most common case, decided in less time.
    if _NUMBER_TYPES.issuperset(map(type, args)) and not kwargs.keys() - {"size"}:
        size = args[size_position] if size_position is not None and len(args) > size_position else kwargs.get("size")
        if size is None or type(size) is int:
            return (1 if size is None else size) < _LARGE_COUNT and not (
                name in _LENGTH_METHODS and _length(args[0]) >= _LARGE_COUNT
            )
    values = (*args, *kwargs.values())
    if kwargs.get("layout") is not None or any(map(_is_large, values)):
        return False
    if name in _ORDER_METHODS:
        return _length(args[0] if args else kwargs.get("x", 0)) < _LARGE_COUNT
    size = args[size_position] if size_position is not None and len(args) > size_position else kwargs.get("size")
    count = prod(size) if isinstance(size, tuple | list) else 1 if size is None else size
    if not isinstance(count, int | np.integer):
        return True  # NumPy raises the error
    if name == "choice":
        is_simple = (args[2] if len(args) > 2 else kwargs.get("replace", True)) and kwargs.get("p") is None
        is_few = is_simple or _length(args[0] if args else kwargs.get("a", 0)) < _LARGE_COUNT
        return bool(is_few and count < _LARGE_COUNT)
    shapes = [np.shape(x) for x in values if isinstance(x, np.ndarray | DTensor | list | tuple) and x is not size]
    if name in _VECTOR_METHODS and shapes:
        count *= prod(shapes[0])
    elif size is None and shapes:
        try:
            count = prod(np.broadcast_shapes(*shapes))
        except ValueError:
            return True  # NumPy raises the error
    return bool(count < _LARGE_COUNT)


def _is_large(x: object) -> bool:
    """Return whether *x* is a large array, or a tensor that is large or not on all ranks."""
    if isinstance(x, DTensor):
        return x.nbytes >= WHOLE_BELOW or x.mesh.size < x.mesh.world.size
    return isinstance(x, np.ndarray) and x.nbytes >= WHOLE_BELOW and not x.dtype.hasobject


def _length(x: object) -> int:
    """Return *x* if it is an integer, the number of elements to order; 0 for an array, which is small."""
    return int(x) if isinstance(x, int | np.integer) else 0


def _method_by_size(name: str, numpy_method: Function, tensor_method: Function, size_position: int | None) -> Function:
    """Return the method *name*: *numpy_method* for small draws, *tensor_method* for the others."""

    @wraps(tensor_method)
    def draw(self: object, *args: object, **kwargs: object) -> object:
        if _is_small(name, size_position, args, kwargs) and new_arrays_are_on_all_ranks():
            plain_args = [_plain_array(x) for x in args]
            plain_kwargs = {key: _plain_array(x) for key, x in kwargs.items() if key != "layout"}
            result = numpy_method(self, *plain_args, **plain_kwargs)
            out = kwargs.get("out", (*args, *kwargs.values())[0] if name == "shuffle" else None)
            if isinstance(out, DTensor):
                out[...] = plain_kwargs["out"] if "out" in plain_kwargs else (*plain_args, *plain_kwargs.values())[0]
            if type(result) is not np.ndarray:
                return result
            return from_small(result) if out is None else out
        rule = small_arrays()
        arrays = [x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray) and _is_large(x)]
        tensors = [(x, rule.make(x)) for x in arrays]
        result = tensor_method(
            self, *(_tensor_for(x, tensors) for x in args), **{k: _tensor_for(x, tensors) for k, x in kwargs.items()}
        )
        for array, tensor in tensors:
            # The tensor has a copy in C order.
            if not array.flags.c_contiguous and (result is None or result is tensor):
                array[...] = tensor.to_numpy()
            result = array if result is tensor else result
        return for_program(result) if isinstance(result, DTensor) and "layout" not in kwargs else result

    return draw


def _tensor_for(x: object, tensors: list[tuple[Array, DTensor]]) -> object:
    """Return the tensor for *x*, if *x* is one of the arrays in *tensors*: so numbers are those on several ranks."""
    return next((tensor for array, tensor in tensors if array is x), x)


def _plain_array(x: object) -> object:
    return np.asarray(x) if type(x) is WholeArray else np.array(x) if isinstance(x, DTensor) else x


# -- generators -------------------------------------------------------------------------------------------------------


class Generator(generator.Generator, np.random.Generator):  # type: ignore[misc]  # its methods take layouts, too
    """Random arrays, and tensors in the layouts of the rule: see `default_rng`. It is a numpy.random.Generator."""

    def __init__(self, bit_generator: BitGenerator, *, is_same: bool = False) -> None:
        """Draw from a bit generator. Collective, unless *is_same*: then all ranks have made it with one seed."""
        shared_bits = bit_generator if is_same else _with_root_seed(bit_generator)
        seeds = _seeds(shared_bits)
        super().__init__(SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, _TILE_SPAWN_KEY)))
        np.random.Generator.__init__(self, shared_bits)

    def __reduce__(self) -> Any:
        return _restored, (self.bit_generator, self.state)

    def spawn(self, n_children: int) -> "list[Generator]":  # type: ignore[override]
        """Return *n_children* generators that are independent of this one and of each other."""
        return [Generator(bit_generator, is_same=True) for bit_generator in self.bit_generator.spawn(n_children)]

    def _layout_of(self, shape: Shape, dtype: DType) -> Layout:
        return layout_on(None, shape, dtype)


def _restored(bit_generator: BitGenerator, state: GeneratorState) -> Generator:
    rng = Generator(bit_generator, is_same=True)
    rng.state = state
    return rng


def _size_position(method: Function) -> int | None:
    parameter_names = [*signature(method).parameters][1:]
    return parameter_names.index("size") if "size" in parameter_names else None


for _name, _numpy_method in vars(np.random.Generator).items():
    _tensor_method = getattr(generator.Generator, _name, None)
    if _name[0] != "_" and _tensor_method is not None and _name not in ("spawn", "bytes", "bit_generator"):
        setattr(
            Generator, _name, _method_by_size(_name, _numpy_method, _tensor_method, _size_position(_tensor_method))
        )


def default_rng(seed: NumpySeed = None) -> Generator:
    """Return a generator of random arrays and tensors, with the methods of numpy.random.Generator.

    Without a *seed* it is Collective: rank 0 draws a seed for all ranks.
    """
    if isinstance(seed, Generator):
        return seed
    if seed is None or isinstance(seed, BitGenerator | np.random.Generator | np.random.RandomState):
        return Generator(np.random.default_rng(seed).bit_generator)
    return Generator(np.random.default_rng(seed).bit_generator, is_same=True)


def _with_root_seed(bit_generator: BitGenerator) -> BitGenerator:
    """Return a bit generator with the seed of rank 0. Collective: ranks may have drawn different seeds."""
    seeds = _seeds(bit_generator)
    root_seeds = _root_seed(seeds)
    is_same = (
        np.array_equal(np.asarray(seeds.entropy), np.asarray(root_seeds.entropy))
        and seeds.spawn_key == root_seeds.spawn_key
    )
    return bit_generator if is_same else type(bit_generator)(root_seeds)


def _seeds(bit_generator: BitGenerator) -> SeedSequence:
    return cast("SeedSequence", bit_generator.seed_seq)  # only bit generators of other packages may have none


def _root_seed(seeds: SeedSequence) -> SeedSequence:
    def seed_fields() -> tuple[int | list[int], list[int]]:
        return np.asarray(seeds.entropy).tolist(), list(map(int, seeds.spawn_key))

    seed = broadcast_from_device("numpy.random", mesh_of_program(), "a seed for random numbers", seed_fields)
    entropy, spawn_key = seed_fields() if seed is None else seed
    return SeedSequence(entropy, spawn_key=tuple(spawn_key))


# -- the old interface ------------------------------------------------------------------------------------------------


class _LegacyState(tuple[object, ...]):
    """A state of NumPy, and the state of the generator of large draws."""

    large: GeneratorState | None = None


class RandomState(np.random.RandomState):
    """The old interface of numpy.random: the module's functions are methods of an instance of this class."""

    def __init__(self, seed: NumpySeed = None) -> None:
        if isinstance(seed, BitGenerator):
            self.large = Generator(seed)
            super().__init__(self.large.bit_generator)
        else:
            super().__init__(0)
            self.seed(seed)

    def __reduce__(self) -> Any:
        return _with_state, (self.get_state(),)

    def seed(self, seed: Any = None) -> None:
        """Restart the streams from *seed*. Collective without a seed."""
        legacy_seed = int(_root_seed(SeedSequence()).generate_state(1)[0]) if seed is None else seed
        super().seed(legacy_seed)
        self.large = default_rng(np.asarray(legacy_seed).ravel().astype(np.uint64))

    def get_state(self, legacy: bool = True) -> Any:
        """Return the state for `set_state`: NumPy's, with the state of large draws."""
        if not legacy:
            return {**super().get_state(legacy=False), "large": self.large.state}
        state = _LegacyState(super().get_state(legacy=True))
        state.large = self.large.state
        return state

    def set_state(self, state: State) -> None:
        """Continue from a state of `get_state`, or from one of NumPy."""
        large = state.get("large") if isinstance(state, dict) else getattr(state, "large", None)
        if large is not None:
            self.large.state = large
        super().set_state(state if isinstance(state, dict) else tuple(state))

    def _large_random_sample(self, size: Size = None) -> DrawResult:
        return self.large.random(size)

    _large_random = _large_random_sample

    def _large_rand(self, *shape: int) -> DrawResult:
        return self.large.random(shape or None)

    def _large_randn(self, *shape: int) -> DrawResult:
        return self.large.standard_normal(shape or None)

    def _large_randint(
        self, low: Values, high: Values | None = None, size: Size = None, dtype: DTypeLike = int
    ) -> DrawResult:
        return self.large.integers(low, high, size, dtype)

    def _large_random_integers(self, low: Values, high: Values | None = None, size: Size = None) -> DrawResult:
        first, last = (1, low) if high is None else (low, high)
        return self.large.integers(first, last, size, endpoint=True)


def _with_state(state: State) -> RandomState:
    rng = RandomState(0)
    rng.set_state(state)
    return rng


def _large_method(name: str) -> Function:
    method = getattr(RandomState, f"_large_{name}", None)

    def draw(self: RandomState, *args: object, **kwargs: object) -> DrawResult:
        return getattr(self.large, name)(*args, **kwargs)

    return method or draw


_SIZE_POSITIONS = {"random_sample": 0, "random": 0, "randint": 2, "random_integers": 2}
"""The position of the argument ``size`` in functions that only the old interface has."""

_SHAPE_FUNCTIONS = {"rand": np.random.RandomState.random_sample, "randn": np.random.RandomState.standard_normal}
"""Functions with lengths as arguments, and the functions that NumPy calls for them."""


def _legacy_method(name: str, numpy_method: Function) -> Function:
    large_method = _large_method(name)
    if name in _SHAPE_FUNCTIONS:
        numpy_method = _SHAPE_FUNCTIONS[name]
        method = _method_by_size(name, numpy_method, lambda self, shape=None: large_method(self, *shape or ()), 0)
        return lambda self, *shape: method(self, shape or None)
    size_position = _SIZE_POSITIONS.get(name)
    if size_position is None and hasattr(generator.Generator, name):
        size_position = _size_position(getattr(generator.Generator, name))
    return _method_by_size(name, numpy_method, large_method, size_position)


for _name, _numpy_method in vars(np.random.RandomState).items():
    if _name in NAMES and _name not in ("seed", "get_state", "set_state", "bytes"):
        setattr(RandomState, _name, wraps(_numpy_method)(_legacy_method(_name, _numpy_method)))


# -- the module -------------------------------------------------------------------------------------------------------

_process_states: list[RandomState] = []
_world_states: WeakKeyDictionary[object, RandomState] = WeakKeyDictionary()
"""States by world: each simulated rank has its own world. A process of MPI has one state, in `_process_states`."""


def _state() -> RandomState:
    """Return this rank's state for the functions of the module. Collective when it is first needed."""
    if watch.simulated is None:
        if not _process_states:
            _process_states.append(_shared_state() if in_script() else RandomState())
        return _process_states[0]
    world = mesh_of_program().world.here()
    if world not in _world_states:
        _world_states[world] = RandomState()
    return _world_states[world]


def _shared_state() -> RandomState:
    """Return the state of a script, which draws from NumPy's global stream, as libraries do. Collective."""
    state = _with_state(np.random.get_state())
    np.random.RandomState.__init__(state, get_bit_generator())
    state.large = default_rng()
    return state


def _seed(seed: Seed | None = None) -> None:
    """Restart the streams of the module, and NumPy's global stream. Collective without a *seed*."""
    state = _state()
    state.seed(seed)
    np.random.set_state(np.random.RandomState.get_state(state))


_CLASSES = {cls.__name__: cls for cls in (MT19937, PCG64, PCG64DXSM, SFC64, BitGenerator, Philox, SeedSequence)}


def named(name: str) -> object:
    """Return the counterpart of numpy.random's *name* in `meshcomm.numpy`."""
    if name in _CLASSES:
        return _CLASSES[name]
    if name in ("Generator", "RandomState", "default_rng"):
        return globals()[name]
    if name == "seed":
        return _seed
    method: Function = getattr(RandomState, {"ranf": "random_sample", "sample": "random_sample"}.get(name, name))

    def function(*args: object, **kwargs: object) -> object:
        return method(_state(), *args, **kwargs)

    function.__name__, function.__doc__ = name, getattr(np.random, name).__doc__
    return function
