"""What is said on a rank outside of a mesh if a program takes the None that it has there for a block or a device."""

from collections.abc import Iterable

from meshcomm.ranks.teams import World


def explain_none(error: BaseException, worlds: Iterable[World]) -> None:
    """Add a note to *error* if it is about a None, and this process is outside of a mesh of one of the *worlds*."""
    if isinstance(error, AttributeError | TypeError) and "NoneType" in str(error):
        for mesh in filter(None, (world.outside_of() for world in worlds)):
            error.add_note(
                f"this rank is outside of the {mesh}, so t.local and mesh.rank are None here: check first that "
                "mesh.rank is not None, or make a mesh of all ranks: create_mesh([('x', -1)])"
            )
            return
