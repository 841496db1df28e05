"""Bounds on scratch memory: predicted, counted in lockstep, and measured; and exchanges too large for an int."""

import gc
import tracemalloc
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from random_cases import Case, least_scratch
from reference import blocks_between, lockstep, mesh_of, random_bits, same_bits, tuple_layouts

import meshcomm as mc
from meshcomm import Layout, Machine, Mesh, ShapeError, exchange, groups, plan_relayout
from meshcomm.exchange import Exchange
from meshcomm.execute import exchange_part, most_bytes
from meshcomm.plan import DEFAULT_SCRATCH, plan_direct

U = "unsharded"
MIB = 2**20

# -- every pair of layouts --------------------------------------------------------------------------------------------

MESHES = [(mesh_of(*sizes), mesh_of(*sizes)) for sizes in [(3,), (2, 2), (2, 3)]]
MESHES += [
    (Mesh(range(3), {"x": 3}), Mesh([4, 1], {"x": 2})),
    (Mesh(range(4), {"x": 2, "y": 2}), Mesh([3, 0, 2, 1], {"x": 4})),
]


@pytest.mark.parametrize("meshes", MESHES, ids=lambda pair: f"{list(pair[0].ranks)} to {list(pair[1].ranks)}")
@pytest.mark.parametrize("shape", [(13,), (7, 5), (4, 3, 4)], ids=str)
def test_scratch_is_within_every_bound(meshes, shape):
    """From the least possible, which the error states, to no bound at all: what is predicted, and what is counted."""
    array, rounds = random_bits(shape, "V3"), 0
    pairs = list(product(*(list(tuple_layouts(mesh, len(shape))) for mesh in meshes)))
    for source, target in pairs[:: 1 + len(pairs) // 25]:
        least = least_scratch(Case(shape, array.dtype, source, target, Machine(), None))
        blocks, expected = (None, None)
        for bound in sorted({least, least + 1, 2 * least, least + 40, None}, key=lambda b: (b is None, b)):
            plan = plan_relayout(shape, array.dtype, source, target, bound)
            blocks = blocks or blocks_between(array, source, plan)
            expected = expected or blocks_between(array, target, plan)
            run = lockstep(plan, blocks)
            limit = DEFAULT_SCRATCH if bound is None else bound
            assert max(run.scratch) <= limit, f"bound {bound} of\n{plan}"
            for device, (block, wanted) in enumerate(zip(run.blocks, expected, strict=True)):
                assert (block is None and wanted is None) or same_bits(block, wanted), f"bound {bound} of\n{plan}"
                ends = sum(b.nbytes for b in (blocks[device], wanted) if b is not None)
                peak = plan.for_device(device).peak_bytes
                assert run.peak_bytes[device] <= peak <= ends + limit, f"device {device}, bound {bound} of\n{plan}"
            rounds = max([rounds, *(step.parts for step in plan.steps)])
    assert rounds > 1 or len(shape) == 1, "boxes of vectors are never packed"


def test_the_least_possible_is_stated_and_works():
    mesh = mesh_of(4)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    with pytest.raises(ShapeError, match=r"max_scratch_bytes=31 is too little .*: the least possible is 32$"):
        plan_relayout((8, 8), "f8", rows, columns, 31)
    assert plan_relayout((8, 8), "f8", rows, columns, 32).steps[0].parts > 1
    assert plan_relayout((8, 8), "f8", rows, Layout([U, U], mesh), 0).steps[0].parts == 1, "received in place"
    for bad in (-1, 1.5, "64", True):
        with pytest.raises(ShapeError, match="max_scratch_bytes"):
            plan_relayout((8, 8), "f8", rows, columns, bad)


def test_the_default_is_bounded_too():
    mesh = mesh_of(2)
    plan = plan_relayout((2**14, 2**14), "f4", Layout(["x", U], mesh), Layout([U, "x"], mesh))
    assert plan.steps[0].parts > 1
    assert plan.peak_bytes <= 2 * 2**29 + DEFAULT_SCRATCH


# -- measured ---------------------------------------------------------------------------------------------------------

PAIRS = [
    (["x", U, U], [U, "x", U]),
    ([U, "x", U], ["x", U, U]),
    (["x", "y", U], ["y", U, "x"]),
    ([U, ("x", "y"), U], [U, U, "y"]),
    ([U, "x", "y"], ["x", U, U]),
    ([U, U, ("x", "y")], [U, ("y", "x"), U]),
]


@pytest.mark.parametrize("many", [False, True], ids=["one", "four at once"])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_measured_scratch_is_within_64_kib(source, target, many):
    """Of an array of 32 MiB; NumPy reports what it allocates to tracemalloc."""
    shape, bound, ranks = ((64, 256, 256) if not many else (64, 128, 128)), 2**16, 4

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        a, b = Layout(source, mesh), Layout(target, mesh)
        count = 4 if many else 1
        tensors = [mc.ones(shape, "f8", a) for _ in range(count)]
        mc.barrier(mesh)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        moved = mc.relayout(tensors, b, max_scratch_bytes=bound) if many else [mc.relayout(tensors[0], b, None, bound)]
        mc.barrier(mesh)
        peak = tracemalloc.get_traced_memory()[1]
        mc.barrier(mesh)
        assert all((tensor.local == 1).all() for tensor in moved)
        return before, peak, sum(tensor.local.nbytes for tensor in moved)

    exchange.forget_scratch()
    tracemalloc.start()
    try:
        with mc.simulate(ranks) as world:
            before, peaks, new = zip(*world.run(program), strict=True)
    finally:
        tracemalloc.stop()
    scratch = max(peaks) - min(before) - sum(new)
    assert scratch <= ranks * bound + MIB


# -- large counts -----------------------------------------------------------------------------------------------------


class NoTeam:
    """A team that only knows what its MPI can count."""

    def __init__(self, large_counts):
        self.large_counts = large_counts

    def group(self, key, color, members):
        return SimpleNamespace(members=members, team=self)


def exchange_of(plan, device, large_counts=True):
    """The exchange of a plan of one step, of which nothing is allocated."""
    (step,) = plan.steps
    members = tuple(step.ranks[d] for d in step.group_of(device))
    group = NoTeam(large_counts).group(None, 0, members)
    part = exchange_part(step, device)
    return Exchange(group, step.place_of(device), [part], most_bytes(step), step.parts)


@pytest.mark.parametrize("total", [2**31, 2**32, 2**33 + 3 * 2**20, 2**40])
@pytest.mark.parametrize("ranks", [2, 3, 20], ids="{} ranks".format)
def test_counts_and_offsets_of_large_blocks(total, ranks):
    """Each rank sends so many bytes to each other one, also those that it packs first."""
    mesh = mesh_of(ranks)
    for specs in ([["x", U], [U, "x"]], [[U, "x"], ["x", U]]):
        shape = (ranks, total * ranks) if specs[0][0] == "x" else (total * ranks, ranks)
        plan = plan_direct(shape, "u1", *(Layout(s, mesh) for s in specs))
        for device in (0, ranks - 1):
            made = exchange_of(plan, device)
            for side in (made.send, made.receive):
                counts, offsets = (np.asarray(values).tolist() for values in side.part(0))
                others = [place for place in range(ranks) if place != device]
                assert counts == [0 if place == device else total for place in range(ranks)]
                places = [offsets[place] for place in others]
                start = places[0]
                assert places == [
                    start + i * total if side.packing else place * total for i, place in enumerate(others)
                ]


@pytest.mark.parametrize("itemsize", [1, 16])
def test_rounds_of_large_blocks_make_the_whole(itemsize):
    mesh = mesh_of(2)
    length = 2**40 // itemsize
    plan = plan_relayout((2 * length, 2), f"V{itemsize}", Layout(["x", U], mesh), Layout([U, "x"], mesh))
    (step,) = plan.steps
    made = exchange_of(plan, 0)
    assert made.rounds == step.parts > 2**40 // DEFAULT_SCRATCH
    assert made.send.room + made.receive.room <= DEFAULT_SCRATCH
    sent = 0
    for number in (0, 1, step.parts // 2, step.parts - 1):
        counts, offsets = (np.asarray(values).tolist() for values in made.receive.part(number))
        length_before = length // step.parts * number + min(number, length % step.parts)
        assert offsets[1] == (length + length_before) * itemsize, "received in place"
        assert counts[0] == 0
        sent += counts[1]
        assert counts[1] == made.send.part(number)[0][1] <= made.send.room
    assert 4 * (length // step.parts) * itemsize <= sent <= 4 * (length // step.parts + 1) * itemsize


@pytest.mark.parametrize(
    ("block", "large_counts", "in_pieces"),
    [
        (2**31 - 2, False, False),
        (2**31, False, True),
        (2**31, True, False),
        (2**40, False, True),
        (2**40, True, False),
    ],
)
def test_pieces_are_for_an_mpi_that_counts_with_an_int(block, large_counts, in_pieces):
    mesh = mesh_of(2)
    plan = plan_direct((2 * block,), "u1", Layout(["x"], mesh), Layout([U], mesh))
    largest = plan.for_device(1)
    assert largest.bytes_moved == block
    # The new block has twice as many bytes, and offsets into it.
    assert exchange_of(plan, 1, large_counts)._in_pieces is (in_pieces or (not large_counts and 2 * block >= 2**31))
    same = plan_direct((block, 2), "u1", Layout([U, "x"], mesh), Layout(["x", U], mesh))
    assert exchange_of(same, 0, large_counts)._in_pieces is in_pieces


def test_what_is_sent_at_once_can_be_counted():
    class Long:
        """Bytes of which there are too many to make them."""

        def __init__(self, start, stop):
            self.start, self.stop = start, stop

        def __len__(self):
            return self.stop - self.start

        def __getitem__(self, part):
            start, stop, _ = part.indices(len(self))
            return Long(self.start + start, self.start + stop)

    for size in (0, 1, 2**30, 2**31 - 1, 2**31, 2**32 + 5, 2**40):
        pieces = groups._sendable(Long(0, size))
        assert sum(map(len, pieces)) == size
        assert all(0 < len(piece) <= groups.LARGEST_COUNT for piece in pieces)
        assert all(a.stop == b.start for a, b in pairwise(pieces))
