"""Where meshes meet worlds: the world of a mesh, and the meshes of a program."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from meshcomm import _late, groups, guard
from meshcomm.errors import MeshError
from meshcomm.groups import MPIWorld, Place, World
from meshcomm.mesh import Mesh
from meshcomm.simulate import SimulatedWorld, current_world

if TYPE_CHECKING:
    from mpi4py import MPI


def create_mesh(
    mesh_dims: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
    mesh_name: str = "",
    devices: Sequence[int] | Sequence[str] | None = None,
    comm: "MPI.Intracomm | None" = None,
) -> Mesh:
    """Return a mesh over ranks of the world. Local; Collective over *comm* when that is given for the first time.

    *mesh_dims* are pairs of name and size, or a dict; one size may be -1, for what the number of devices leaves; None
    is one dimension ``x`` over all of them. *devices* are the ranks, in the order of the mesh, by default the first
    ranks of the world. The world is *comm*, else the simulated world around, else COMM_WORLD. ``MeshError`` if the
    sizes do not fit the devices. Source: tf.experimental.dtensor.create_mesh.

    >>> create_mesh([("x", 2), ("y", 2)]).dim_names
    ['x', 'y']
    """
    world = groups.mpi_world(comm) if comm is not None else current_world()
    dims = _complete(mesh_dims, devices, world)
    mesh = Mesh(range(prod(size for _, size in dims)) if devices is None else devices, dims, mesh_name)
    if world is not None:
        mesh = mesh._bound_to(world)
    if isinstance(world, MPIWorld):
        world.meshes += 1
    if mesh.size > 1 and not isinstance(world, SimulatedWorld):
        guard.install_hooks()
    return mesh


def _complete(
    mesh_dims: Iterable[tuple[str, int]] | Mapping[str, int] | None,
    devices: Sequence[int] | Sequence[str] | None,
    world: MPIWorld | SimulatedWorld | None,
) -> list[tuple[str, int]]:
    """Return *mesh_dims* as pairs without -1."""

    def available() -> int:
        return len(devices) if devices is not None else (world or groups.mpi_world()).size

    if mesh_dims is None:
        return [("x", available())]
    try:
        dims = [(name, size) for name, size in (mesh_dims.items() if isinstance(mesh_dims, Mapping) else mesh_dims)]
    except (TypeError, ValueError):
        raise MeshError(f"mesh dimensions are pairs of a name and a size, not {mesh_dims!r}") from None
    unknown = [name for name, size in dims if size == -1]
    if not unknown:
        return dims
    if len(unknown) > 1:
        raise MeshError(f"only one mesh dimension may have size -1, not {', '.join(unknown)}")
    known = prod(size for _, size in dims if size != -1)
    if known < 1 or available() % known:
        raise MeshError(
            f"mesh dimension {unknown[0]!r} of size -1: {available()} devices cannot be divided by {known}, "
            "the product of the other sizes"
        )
    return [(name, available() // known if size == -1 else size) for name, size in dims]


def place_in(mesh: Mesh) -> Place | None:
    """Return this process's team and device in *mesh*, or None if it is outside. Local."""
    here: World = mesh.world.here()
    return here.place(mesh)


def world_of(comm: "MPI.Intracomm | None") -> World:
    """Return the world of *comm*, else the simulated one around, else that of COMM_WORLD, as this rank sees it.

    Collective over *comm* when that is given for the first time, else Local.
    """
    world = current_world() if comm is None else None
    if world is None:
        found = groups.mpi_world(comm)
        if found.size > 1:
            guard.install()
        return found.here()
    return world.here()


@_late.provides("world")
def _world() -> MPIWorld | SimulatedWorld:
    world = current_world()
    if world is not None:
        return world
    found = groups.mpi_world()
    if found.size > 1:
        guard.install()
    return found


@_late.provides("mesh_rank")
def _mesh_rank(mesh: Mesh) -> int | None:
    world = mesh.world
    if isinstance(world, SimulatedWorld) and current_world() is not world:
        return None
    place = place_in(mesh)
    return place.device if place else None


@_late.provides("close_mesh")
def _close_mesh(mesh: Mesh) -> None:
    if mesh._closed:
        return
    world: World = mesh.world.here()
    place = world.place(mesh)
    object.__setattr__(mesh, "_closed", True)
    if place is not None:
        world.leave(place.team)
    if isinstance(world, MPIWorld) and mesh._world is not None:
        world.meshes -= 1
        world.release()
