"""NumPy's functions on tensors give what they give on arrays: the law of all of them, from a table of calls."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from support.numpy_law import CALLS, TIMES, check, given_to, in_layouts, law
from support.reference import blocks_of, same_bits
from support.sampling import sampled
from support.tensors import layout_of

pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN, and empty slices
SIZES = [(1,), (2,), (3,), (2, 2), (4,), (2, 3)]
SEEDS = sampled(range(12), 3)


def on_a_mesh(seed, program):
    """Run a program on a mesh, sometimes with a rank outside of it."""
    sizes = SIZES[seed % len(SIZES)]
    count = int(np.prod(sizes))
    with mc.simulate(count + seed // len(SIZES) % 2) as world:
        world.run(lambda: program(mc.create_mesh(list(zip("xy", sizes, strict=False)), devices=list(range(count)))))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CALLS)
def test_functions_are_those_of_numpy(name, seed):
    on_a_mesh(seed, lambda mesh: law(name, seed, mesh))


@pytest.mark.parametrize("seed", SEEDS)
def test_functions_of_indices(seed):
    def program(mesh):
        random = Random(seed)
        for shape, function, dtype in [
            ((7, 6), lambda i, j: i - 2 * j, float),
            ((11,), lambda i: i % 3 == 0, int),
            ((4, 3, 5), lambda i, j, k: k, "i4"),
            ((0, 3), lambda i, j: i + 1j * j, float),
        ]:
            found = mc.fromfunction(function, shape, layout_of(random, mesh, shape), dtype=dtype)
            check(found, np.fromfunction(function, shape, dtype=dtype))

    on_a_mesh(seed, program)


KEPT = [
    *(f"np.{name}(A, axis=DIM)" for name in ("cumsum", "cumprod", "nancumsum", "nancumprod")),
    *("np.sort(S, DIM)", "np.argsort(S, DIM)", "np.flip(R, AXES)", "np.roll(R, SHIFT)", "np.roll(R, SHIFT, DIM)"),
    *("np.zeros_like(A)", "np.full_like(A, 1, 'f4')", "np.empty_like(A, 'u2')", "-A", "np.diff(A, 0)"),
    *(f"np.{name}(I(5, 4))" for name in ("tril", "triu", "isfinite")),
]
"""Calls whose result has the layout of the operand."""
REDUCED = ["sum", "prod", "mean", "any", "max", "ptp", "count_nonzero", "var", "nanstd", "nanmin", "median", "argmax"]


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_of_results(seed):
    """That of the operand, or what it has of the axes that are left; or the one that is asked for."""

    def program(mesh):
        random = Random(seed)
        for call in KEPT * TIMES:
            given = in_layouts(random, mesh, given_to(call, random.randrange(1000)))
            operand = next((each for each in given.values() if isinstance(each, mc.DTensor)), None)
            if operand is None:
                operand = given["I"](5, 4)
                given["I"] = lambda *shape, operand=operand: operand
            assert eval(call, {"np": np, **given}).layout == operand.layout, call
        for name in REDUCED:
            given = in_layouts(random, mesh, given_to("Q, DIM, KEEP", random.randrange(1000)))
            t, axis, keep = given.values()
            kept = list(t.layout.axes)
            kept[axis : axis + 1 or None] = [()] if keep else []
            assert list(getattr(np, name)(t, axis=axis, keepdims=keep).layout.axes) == kept, name
        assert all(each.layout.is_fully_replicated() for each in np.histogram(t, 3, (-2, 2)))
        for call in ("mc.reshape(R, SHAPE", "mc.concatenate([R, R], DIM", "mc.stack([R, R], DIM"):
            whole = given_to(call + ")", random.randrange(1000))
            expected = eval(f"{call.replace('mc.', 'np.')})", {"np": np, **whole})
            layout = layout_of(random, mesh, expected.shape)
            found = eval(f"{call}, layout=layout)", {"mc": mc, "layout": layout, **in_layouts(random, mesh, whole)})
            assert found.layout == layout
            assert found.local is None or same_bits(found.local, blocks_of(expected, layout)[mesh.rank])

    with np.errstate(all="ignore"):
        on_a_mesh(seed, program)
