"""Halos are those of PETSc's DMDA, for all its boundary types and stencils: recorded by record_dmda.py."""

import json

import numpy as np
import pytest

import meshcomm as mc
from support.paths import DATA

RECORDED = json.loads((DATA / "dmda.json").read_text(encoding="utf-8"))
BOUNDARIES = {"NONE": "none", "GHOSTED": -1, "PERIODIC": "periodic", "MIRROR": "mirror"}


def name(case):
    return f"{'-'.join(case['boundary'])}-{case['stencil']}-{case['width']}"


@pytest.mark.parametrize("case", RECORDED["cases"], ids=name)
def test_halos_are_those_of_dmda(case):
    shape, devices = tuple(case["shape"]), case["devices"]
    dims = [("x", 4)] if len(shape) == 1 else [("x", 2), ("y", 2)]
    cuts = []
    for axis, (dim, _) in enumerate(dims):
        cuts.append(mc.Cuts(dim, sorted({n for each in devices for n in each["ranges"][axis]})))
    star = case["stencil"] == "STAR"

    def program():
        layout = mc.Layout(cuts, mc.create_mesh(dims))
        t = mc.distribute(1.0 + np.arange(np.prod(shape)).reshape(shape), layout)
        h = mc.halo(t, case["width"], [BOUNDARIES[each] for each in case["boundary"]], corners=not star)
        owned = [[each.start, each.stop] for each in layout.block_slices(shape, h.mesh.rank)]
        (expected,) = [each for each in devices if each["ranges"] == owned]
        assert [[each.start, each.stop] for each in h.slices(h.mesh.rank)] == expected["ghost_ranges"]
        compared = np.ones(h.local.shape, bool)
        if star:  # nobody fills what is beyond the block along both axes
            beyond = [np.ones(n, bool) for n in h.local.shape]
            for each, inner in zip(beyond, h.inner_slices, strict=True):
                each[inner] = False
            compared = ~np.logical_and.outer(*beyond)
        local = np.reshape(expected["local"], h.local.shape)
        np.testing.assert_array_equal(h.local[compared], local[compared])
        h.local[...] = 1
        h.reduce()
        np.testing.assert_array_equal(h.inner.ravel(), expected["added"])

    with mc.simulate(4) as world:
        world.run(program)
