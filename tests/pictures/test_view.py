"""What pictures show is what layouts say: every element is in one box, with the devices that hold it."""

import itertools
import random
import re

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.tools.pictures.view import LayoutView, blocks_of, listed, panels

U = mc.UNSHARDED
MESH = mc.Mesh(range(12), {"x": 3, "y": 2, "z": 2})
MANY = 10**6


def random_layout(seed):
    """Return a layout with specs of all kinds, and a shape; axes may be shorter than there are blocks, or empty."""
    draw = random.Random(seed)
    shape = tuple(draw.choice((0, 1, 2, 3, 5, 8, 13)) for _ in range(draw.randrange(4)))
    names, specs = draw.sample(["x", "y", "z"], 3), []
    for length in shape:
        own = tuple(names.pop() for _ in range(draw.randrange(min(len(names), 2) + 1)))
        blocks = int(np.prod([MESH.dim_size(name) for name in own]))
        kind = draw.choice(("plain", "cuts", "cyclic")) if own else "plain"
        if kind == "cuts":
            inner = sorted(draw.randrange(length + 1) for _ in range(blocks - 1))
            specs.append(mc.Cuts(own, (0, *inner, length)))
        elif kind == "cyclic":
            specs.append(mc.Cyclic(own, draw.randrange(1, 5), draw.randrange(blocks)))
        else:
            specs.append(own or U)
    return mc.Layout(specs, MESH), shape


def holders_by_layout(layout, shape):
    """Return for each element the devices that hold it, as the layout says."""
    found = {index: [] for index in np.ndindex(shape)}
    for device in range(layout.mesh.size):
        axes = [layout.global_indices(shape, device, axis).tolist() for axis in range(len(shape))]
        for index in itertools.product(*axes):
            found[index].append(device)
    return {index: listed(np.array(devices)) for index, devices in found.items()}


def intervals(view, axis):
    return [None] if axis is None else [view.rulers[axis].interval(at) for at in range(view.rulers[axis].count)]


def holders_by_view(view):
    """Return for each element the devices in its box; what is in no slab is in every picture."""
    found = {}
    for panel in panels(view, MANY):
        for row, column in itertools.product(intervals(view, view.row_axis), intervals(view, view.column_axis)):
            ranges = [range(length) for length in view.shape]
            for axis, interval in [*panel.slab.items(), (view.row_axis, row), (view.column_axis, column)]:
                if axis is not None:
                    ranges[axis] = range(interval.start, interval.stop)
            text = view.devices(blocks_of(view, panel, row, column))
            for index in itertools.product(*ranges):
                assert index not in found, "an element is in two boxes"
                found[index] = text
    return found


@pytest.mark.parametrize("seed", range(150))
def test_each_element_is_in_a_box_with_its_devices(seed):
    layout, shape = random_layout(seed)
    assert holders_by_view(LayoutView(layout, shape)) == holders_by_layout(layout, shape)


def test_random_layouts_are_of_all_kinds():
    found = [random_layout(seed) for seed in range(150)]
    kinds = {type(spec).__name__ for layout, _ in found for spec in layout.sharding_specs}
    assert kinds == {"Cuts", "Cyclic", "tuple", "str"}
    assert {len(shape) for _, shape in found} == {0, 1, 2, 3}
    assert any(len(LayoutView(layout, shape).slabs) for layout, shape in found)


@pytest.mark.parametrize("seed", range(60))
def test_intervals_are_found_by_their_indices(seed):
    layout, shape = random_layout(seed)
    for ruler, length in zip(LayoutView(layout, shape).rulers, shape, strict=True):
        for start, stop in itertools.combinations(range(length + 1), 2):
            expected = [
                at for at in range(ruler.count) if ruler.interval(at).start < stop and start < ruler.interval(at).stop
            ]
            assert list(ruler.interval_numbers(start, stop)) == expected


def test_devices_without_elements_are_listed():
    for seed in range(150):
        layout, shape = random_layout(seed)
        if 0 in shape:
            continue
        empty = [device for device in range(12) if 0 in layout.block_shape(shape, device)]
        found = re.search(
            r"(\d+) devices? of 12 without elements: (\S+)\.", " ".join(LayoutView(layout, shape).sentences())
        )
        assert (found is None) == (not empty), (layout, shape)
        if found:
            assert (int(found[1]), found[2]) == (len(empty), listed(np.array(empty)))


def test_ranks_are_reported_where_devices_have_other_numbers():
    def notes(ranks):
        return LayoutView(mc.Layout(["x"], mc.Mesh(ranks, {"x": len(ranks)})), (8,)).ranks_text()

    assert notes(range(4)) == []
    assert notes(range(6, 8)) == ["Device 0 is rank 6, and so on."]
    assert notes([4, 0, 9]) == ["The devices are the ranks 4, 0, 9."]
