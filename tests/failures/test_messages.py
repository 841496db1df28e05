"""Ranks outside of a mesh: the error of a program that takes the None that they have there for something."""

import numpy as np
import pytest

import meshcomm as mc

SAYS = "this rank is outside of the mesh x=2 over ranks 0 to 1, so t.local and mesh.rank are None here"


def on_three_ranks(use):
    """Run ``use(t)`` on three ranks, with a tensor of a mesh of the first two."""

    def program():
        layout = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        return use(mc.distribute(np.arange(12.0).reshape(4, 3), layout))

    with mc.simulate(3) as world:
        return world.run(program)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.local.sum(),
        lambda t: t.local[0],
        lambda t: t.local * 2,
        lambda t: t.mesh.rank + 1,
        lambda t: t.to_numpy().max(),
    ],
)
def test_a_none_is_explained(use):
    with pytest.raises((AttributeError, TypeError), match="NoneType") as caught:
        on_three_ranks(use)
    assert any(note.startswith(SAYS) for note in caught.value.__notes__)


@pytest.mark.parametrize(("use", "error"), [(lambda t: None.sum(), AttributeError), (lambda t: {}["x"], KeyError)])
def test_other_errors_are_not(use, error):
    """The first rank, which is in the mesh, raises them."""
    with pytest.raises(error) as caught:
        on_three_ranks(use)
    assert not any(SAYS in note for note in caught.value.__notes__)


def test_a_number_is_asked_for():
    def use(t):
        try:
            return t.sum().item()
        except mc.LayoutError as error:
            return str(error)

    *inside, outside = on_three_ranks(use)
    assert inside == [66.0, 66.0]
    assert "this rank is outside of the mesh" in outside
    assert "check first that t.mesh.rank is not None" in outside
