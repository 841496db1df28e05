"""Routes to files: every element crosses the disk once, by the device that has it after the relayout."""

from itertools import product
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, Machine, Mesh
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.storage import routes
from meshcomm.storage.routes import choose_route, runs
from support.random_cases import any_case
from support.sampling import sampled

CASES = 300
U = mc.UNSHARDED


def check_route(route, limit):
    """Play the rounds of *route* on all devices: what the file gets is what the array has, each element once."""
    layout, shape = route.layout, route.shape
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    devices = range(layout.mesh.size)
    blocks = [cut_out(whole, layout.block_box(shape, device)) for device in devices]
    taken = [np.zeros(block.shape, dtype=int) for block in blocks]
    touched = np.zeros(whole.size, dtype=int)
    for turn in route.rounds():
        piece = np.full(turn.shape(), -1)
        for device in devices:
            where = tuple(slice(*span) for span in turn.local_box(device))
            taken[device][where] += 1
            its = [turn.source().global_indices(piece.shape, device, axis) for axis in range(piece.ndim)]
            piece[np.ix_(*its)] = blocks[device][where]
        for device in devices:
            block = cut_out(piece, turn.target().block_box(piece.shape, device))
            starts, lengths = runs(turn.file_intervals(device), shape)
            assert lengths.sum() == block.size
            assert block.size * route.itemsize <= limit or not route.exchanges
            found = [whole.ravel()[start : start + n] for start, n in zip(starts, lengths, strict=True)]
            if found:
                np.testing.assert_array_equal(np.concatenate(found), block.ravel())
            if route.owns(device):
                for start, n in zip(starts, lengths, strict=True):
                    touched[start : start + n] += 1
    assert all((counts == 1).all() for counts in taken)
    assert (touched == 1).all()


@pytest.fixture
def forgotten():
    """Routes that were chosen with other constants, and those that the test chooses, are forgotten."""
    routes._choose_cached_route.cache_clear()
    yield
    routes._choose_cached_route.cache_clear()


@pytest.mark.parametrize(("seed", "crowded"), sampled(product(range(8), [False, True])))
@pytest.mark.usefixtures("forgotten")
def test_random_layouts(seed, crowded, monkeypatch):
    if crowded:
        for name, value in [("MAX_OPENERS", 2), ("PAGE", 64), ("MAX_UNEVEN", 1)]:
            monkeypatch.setattr(routes, name, value)
    kinds = set()
    for number in range(seed * CASES, (seed + 1) * CASES):
        case, random = any_case(number), Random(number)
        if int(np.prod(case.shape)) > 20_000:
            continue
        # A row-wise limit may be too small for one element of a round: then a round takes one.
        machine = Machine(alpha_disk=random.choice([0, 1e-6, 1e-2]), beta_disk=1e-9, gamma=random.choice([0, 1e-9]))
        route = choose_route(case.source, case.shape, 8, random.choice([2**30, 2**12, 2**10]), machine)
        kinds.add((route.exchanges, route.even, route.moved, route.cut, route.grain > 1, route.merged > 1))
        check_route(route, 2**30)
    assert len(kinds) > (12 if crowded else 5)


def openers(route, ranks_per_node):
    """Return how many devices of a node touch the file, at most."""
    devices = [
        device
        for device in range(route.layout.mesh.size)
        if route.owns(device) and any(all(turn.file_intervals(device)) for turn in route.rounds())
    ]
    return int(np.bincount(np.array(devices) // ranks_per_node).max())


SPECS = [["x", "y"], [("x", "y"), U], [U, ("x", "y")], ["y", U], [U, U], [mc.Cyclic("x", 1), U]]


@pytest.mark.parametrize(
    ("specs", "ranks_per_node", "limit"), sampled(product(SPECS, [16, 24, 48, 96], [2**12, 2**20])), ids=str
)
def test_few_devices_of_a_node_touch_the_file(specs, ranks_per_node, limit):
    mesh, shape = Mesh(range(96), {"x": 8, "y": 12}), (97, 101)
    route = choose_route(Layout(specs, mesh), shape, 8, limit, Machine(nodes=ranks_per_node))
    assert openers(route, ranks_per_node) <= 16
    check_route(route, 2**20 if route.even else limit)  # a round of cyclic blocks has one from each device


def test_no_two_devices_write_one_page():
    mesh, shape = Mesh(range(4), {"x": 4}), (10_030, 1000)
    route = choose_route(Layout([U, "x"], mesh), shape, 8, 2**23, Machine())
    for turn in route.rounds():
        found = [runs(turn.file_intervals(device), shape) for device in range(4)]
        firsts = [int(starts[0]) * 8 for starts, _ in found if len(starts)]
        assert len(firsts) > 1
        assert all(first % 4096 == 0 for first in firsts)


@pytest.mark.parametrize("limit", [2**30, 2**12])
@pytest.mark.parametrize("spec", [mc.Cyclic("x", 3), mc.Cyclic("x", 3, offset=1), mc.Cyclic("x", 1)])
def test_fewer_runs_than_devices(spec, limit):
    mesh, shape = Mesh(range(6), {"x": 6}), (8, 20, 50)
    route = choose_route(Layout([spec, U, U], mesh), shape, 8, limit, Machine())
    check_route(route, 2**30 if route.even else limit)
