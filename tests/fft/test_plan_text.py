"""What a plan of a transform says: the bytes that a device receives, against what is counted, and names."""

import pytest

import meshcomm as mc
from support.fft_cases import gathered_up_to


@pytest.mark.parametrize(
    ("kind", "n", "dtype", "least", "most"),
    [
        ("fftn", 4096, "c16", 1, 1),
        ("fftn", 3600, "c8", 1, 1),
        ("ifftn", 3601, "c16", 0.9, 1.2),
        ("rfftn", 4096, "f8", 0.7, 1.2),
        ("irfftn", 2049, "c16", 0.9, 1.1),
        ("dctn", 4096, "f8", 0.9, 1.3),
        ("fftn", 4999, "c16", 0.7, 1.1),
        ("dctn", 3001, "f8", 0.7, 1.1),
        ("rfftn", 19997, "f4", 0.7, 1.1),
    ],
)
@pytest.mark.parametrize("target", [None, "same"])
def test_a_sharded_axis(kind, n, dtype, least, most, target):
    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 4)]))
        plan = mc.fft.plan((n,), dtype, layout, target, kind)
        tensor = mc.ones((n,), dtype, layout)
        with mc.count() as counted:
            plan.forward(tensor)
        assert " received" in str(plan)
        return counted.bytes, plan.bytes_moved

    with gathered_up_to(0), mc.simulate(4) as world:
        found = world.run(program)
    counted, planned = max(found)
    assert least * planned <= counted <= most * planned


def test_plans_that_share_steps_name_the_kind():
    layout = mc.Layout([mc.UNSHARDED, "x"], mc.Mesh(range(2), {"x": 2}))
    first, second = (str(mc.fft.plan((4, 6), "c16", layout, kind=kind)) for kind in ("fft2", "fftn"))
    assert first == second
    assert "1. fftn over axes" in second
