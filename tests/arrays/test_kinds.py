"""Tensors in layouts of all kinds on simulated ranks: how they are made, moved in every form, and read back."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, ShapeError
from support.random_cases import random_boundaries, shapes_of
from support.reference import block_of, numbered, random_bits, same_bits, simulated
from support.sampling import sampled
from support.strategies import DTYPES
from support.tensors import is_right, layout_of

U = "unsharded"
SEEDS = sampled(range(100), 5)
RANKS = [1, 2, 3, 4, 6]


def on_meshes(seed, program):
    """Run *program* on the ranks of a world, a few times with arrays of random shapes and dtypes."""
    ranks = RANKS[seed % len(RANKS)]

    def on_rank(rank):
        random = Random(seed)
        for number in range(8):
            mesh = mc.create_mesh(list(zip("xyz", random.choice(shapes_of(ranks)), strict=False)))
            shape = tuple(random.randint(0 if random.random() < 0.1 else 1, 14) for _ in range(random.randint(1, 3)))
            array = random_bits(shape, random.choice(DTYPES), number)
            program(random, mesh, array, layout_of(random, mesh, shape))

    simulated(ranks, on_rank)


@pytest.mark.parametrize("seed", SEEDS)
def test_how_tensors_are_made_and_read(seed):
    def program(random, mesh, array, layout):
        root, rank, shape = random.randrange(mesh.size), mesh.rank, array.shape
        mine = block_of(array, layout, rank)
        called = []

        def fn(slices):
            called.append(slices)
            return array[slices]

        whole = mc.distribute(array, layout)
        assert is_right(whole, array, layout)
        assert not np.shares_memory(whole.local, array)
        assert (whole.ndim, whole.size, whole.nbytes) == (array.ndim, array.size, array.nbytes)
        assert is_right(mc.distribute(array if rank == root else None, layout, root=root), array, layout)
        assert is_right(mc.from_local(mine, layout), array, layout)
        tensor = mc.from_local(mine, layout, shape)
        assert is_right(tensor, array, layout)
        assert is_right(mc.from_callback(shape, array.dtype, layout, fn), array, layout)
        assert sum(array[slices].size for slices in called) == mine.size
        assert not mine.size or called == list(layout.blocks(shape, rank))
        assert is_right(mc.relayout(array, layout), array, layout)
        assert is_right(mc.copy_to_mesh(array, layout), array, layout)
        assert is_right(mc.pack([mine], layout), array, layout)
        assert is_right(tensor.copy(), array, layout)
        assert same_bits(tensor.to_numpy(), array)
        assert not np.shares_memory(tensor.to_numpy(), tensor.local)
        found = tensor.to_numpy(root=root)
        assert same_bits(found, array) if rank == root else found is None
        assert mc.zeros(shape, "f4", layout).local.shape == mc.zeros_like(tensor).local.shape == mine.shape
        assert mc.full(shape, 7, "i4", layout).to_numpy().tolist() == np.full(shape, 7).tolist()
        assert mc.fetch_layout(tensor) == layout

    on_meshes(seed, program)


@pytest.mark.parametrize("seed", SEEDS)
def test_relayouts_in_every_form(seed):
    def program(random, mesh, array, source):
        shape, dtype = array.shape, array.dtype
        target, other = layout_of(random, mesh, shape), layout_of(random, mesh, shape)
        turned = mc.create_mesh(list(mesh.dims), devices=random.sample(range(mesh.size), mesh.size))
        elsewhere = layout_of(random, turned, shape)
        tensor = mc.distribute(array, source)
        bound = random.choice([None, 1 << 8, 1 << 12, 1 << 16])
        for to in (target, other, elsewhere, source):
            moved = mc.relayout(tensor, to)
            assert is_right(moved, array, to)
            assert not np.shares_memory(moved.local, tensor.local)
            out = mc.zeros(shape, dtype, to)
            try:
                assert is_right(mc.relayout(tensor, to, max_scratch_bytes=bound), array, to)
                assert mc.relayout(tensor, to, out=out, max_scratch_bytes=bound) is out
                assert is_right(out, array, to)
                out.local[...] = np.zeros((), dtype)
            except ShapeError as error:
                assert "minimum" in str(error)  # noqa: PT017 - all ranks raise it
            assert mc.relayout(tensor, to, out=out) is out
            assert is_right(out, array, to)
            assert is_right(mc.relayout_like(tensor, out), array, to)
            plan = mc.plan_relayout(shape, dtype, source, to)
            assert is_right(plan.execute(tensor), array, to)
            assert is_right(plan.execute(tensor, out), array, to)
            assert mc.start_relayout(tensor, to, out=out).wait() is out
            assert is_right(out, array, to)
        requests = [mc.start_relayout(tensor, to) for to in (target, elsewhere, other)]
        listed = mc.relayout([tensor, tensor, tensor], [other, target, elsewhere])
        for moved, to in zip(listed, (other, target, elsewhere), strict=True):
            assert is_right(moved, array, to)
        named = mc.relayout({"a": tensor, "b": listed[0]}, {"a": target, "b": source})
        assert is_right(named["a"], array, target)
        assert is_right(named["b"], array, source)
        for request, to in zip(requests, (target, elsewhere, other), strict=True):
            assert is_right(request.wait(), array, to)
        axis = random.randrange(len(shape))
        specs = source.sharding_specs
        if specs[axis] != U:
            matched = mc.relayout(tensor, Layout([mc.MATCH if a == axis else U for a in range(len(shape))], mesh))
            assert matched.layout.sharding_specs[axis] == specs[axis]
            assert is_right(matched, array, matched.layout)

    on_meshes(seed, program)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_of_any_lengths_make_chosen_cuts(seed):
    def program(random, mesh, array, layout):
        axes = [tuple(names) for names in layout.axes]
        sizes = dict(mesh.dims)
        specs = [
            mc.Cuts(names, random_boundaries(random, n, int(np.prod([sizes[name] for name in names])))) if names else U
            for names, n in zip(axes, array.shape, strict=True)
        ]
        wanted = Layout(specs, mesh)
        plain = [names or U for names in axes]
        tensor = mc.from_local(block_of(array, wanted, mesh.rank), "cuts", mesh=mesh, sharding_specs=plain)
        assert is_right(tensor, array, wanted)
        with mc.default_mesh(mesh):
            assert is_right(mc.from_local(tensor.local, "cuts", sharding_specs=plain), array, wanted)
        rows = mc.Cuts(tuple(sizes), random_boundaries(random, len(array), mesh.size))
        first = Layout([rows] + [U] * (array.ndim - 1), mesh)
        assert is_right(mc.from_local(block_of(array, first, mesh.rank), "cuts", mesh=mesh), array, first)

    on_meshes(seed, program)


WRONG = mc.Cuts("x", (0, 3, 4, 7))
CALLS = {
    "full": lambda mesh, t, wrong: mc.full((6, 4), 3, "f8", wrong),
    "relayout of an array": lambda mesh, t, wrong: mc.relayout(numbered((6, 4)), wrong),
    "plan_relayout": lambda mesh, t, wrong: mc.plan_relayout((6, 4), "f8", t.layout, wrong),
    "plan_relayout from and to": lambda mesh, t, wrong: mc.plan_relayout((6, 4), "f8", wrong, wrong),
    "pack": lambda mesh, t, wrong: mc.pack([numbered((2, 4))], wrong),
    "a variable": lambda mesh, t, wrong: mc.DVariable(numbered((6, 4), "f8"), wrong),
    "a new variable": lambda mesh, t, wrong: mc.Variable(0.0, (6, 4), "f8", layout=wrong),
    "relayout_like": lambda mesh, t, wrong: mc.relayout_like(t, mc.zeros((7, 4), "f8", wrong)),
    "addition": lambda mesh, t, wrong: t + mc.zeros((7, 4), "f8", wrong),
    "addition into": lambda mesh, t, wrong: np.add(t, t, out=mc.zeros((7, 4), "f8", wrong)),
    "relayout into": lambda mesh, t, wrong: mc.relayout(t, wrong, out=mc.zeros((7, 4), "f8", wrong)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["x", mc.Cyclic("x", 1)], ids=str)
def test_boundaries_for_another_length_are_refused_on_all_ranks(call, kind):
    def program(rank):
        mesh = mc.create_mesh([("x", 3)])
        layout, wrong = Layout([kind, U], mesh), Layout([WRONG, U], mesh)
        tensor = mc.distribute(numbered((6, 4), "f8"), layout)
        for _ in range(2):
            with pytest.raises((ShapeError, LayoutError)) as caught:
                CALLS[call](mesh, tensor, wrong)
            assert len(str(caught.value)) < 1000
            assert same_bits(mc.relayout(tensor, Layout([U, "x"], mesh)).to_numpy(), numbered((6, 4), "f8"))
        return type(caught.value), "7" in str(caught.value)

    assert len(found := set(simulated(3, program))) == 1
    assert found.pop()[1]


def test_a_repr_names_the_rules():
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        layout = Layout([mc.Cyclic("y", 3, 1), mc.Cuts("x", (0, 1, 4))], mesh)
        return repr(mc.zeros((7, 4), "f4", layout))

    for text in simulated(4, program):
        assert "cyclic(3;1)" in text
        assert "cuts(0;1;4)" in text


def test_a_callback_is_called_once_for_each_box_in_order():
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        layout, called = Layout([mc.Cyclic("x", 2), mc.UNSHARDED], mesh), []
        mc.from_callback((7, 3), "i4", layout, lambda s: called.append(s) or numbered((7, 3))[s])
        with pytest.raises(ShapeError, match="fn"):
            mc.from_callback((7, 3), "i4", layout, lambda s: numbered((7, 3)))
        with pytest.raises(mc.DTypeError):
            mc.from_callback((7, 3), "i4", layout, lambda s: numbered((7, 3), "f8")[s])
        return [(s[0].start, s[0].stop, s[1].start, s[1].stop) for s in called]

    assert simulated(2, program) == [[(0, 2, 0, 3), (4, 6, 0, 3)], [(2, 4, 0, 3), (6, 7, 0, 3)]]


def test_a_failure_of_one_block_is_an_error_on_all_ranks():
    def program(rank):
        mesh = mc.create_mesh([("x", 3)])
        for one, wrong in [(0, None), (1, np.zeros((2, 2))), (2, np.array([None]))]:
            block = wrong if rank == one else np.zeros(2)
            with pytest.raises(mc.MeshcommError):
                mc.from_local(block, "cuts", mesh=mesh, sharding_specs=["x"])
            with pytest.raises(mc.MeshcommError):
                mc.from_local(block, Layout([mc.Cyclic("x", 2)], mesh))
        return mc.from_local(np.zeros(rank), "cuts", mesh=mesh).layout.sharding_specs[0]

    assert set(simulated(3, program)) == {mc.Cuts("x", (0, 0, 1, 3))}
