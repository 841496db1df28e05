"""Meshes of a program: how to make one, its world, and the default mesh."""

import atexit
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING

from meshcomm.core import _hooks
from meshcomm.core._arguments import counted, quote
from meshcomm.core.failures import abort, forks, host_signals, watchdog
from meshcomm.core.failures.launchers import are_several, launched, refuse_alone
from meshcomm.core.failures.liveness import leave_all
from meshcomm.core.layouts.dimensions import MeshDimension, canonical_dims
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh, bound_to
from meshcomm.core.ranks import progress
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.mpi import MPIWorld, lasting_failures, library_name, mpi, mpi_world, open_worlds
from meshcomm.core.ranks.rank_sets import Location, World, refuse_larger
from meshcomm.core.ranks.simulate import SimulatedWorld, current_world
from meshcomm.core.ranks.variables import check_trace_folder, report_problems
from meshcomm.errors import MeshcommError, MeshError

if TYPE_CHECKING:
    from mpi4py import MPI


def create_mesh(
    mesh_dims: Iterable[tuple[str, int]] | Mapping[str, int] | None = None,
    mesh_name: str = "",
    devices: Sequence[int] | Sequence[str] | None = None,
    comm: "MPI.Intracomm | None" = None,
) -> Mesh:
    """Return a mesh over ranks of the world. Collective over *comm* when that is given for the first time.

    ``MeshError`` if the sizes do not fit the devices, or the mesh needs more ranks than the job has. A program of one
    rank, started without mpiexec, may describe a larger mesh: then the first use of the mesh raises ``MeshError``.
    `Mesh` describes a mesh for any number of ranks. A mesh may have fewer ranks than the job: on the other ranks
    ``mesh.rank`` and the ``local`` of its tensors are None. Source: tf.experimental.dtensor.create_mesh.

    Parameters
    ----------
    mesh_dims: pairs of name and size, or a dict. One size may be -1: it becomes what the number of devices leaves for
        it. None is one dimension ``x`` over all devices.
    mesh_name: a name for messages
    devices: the ranks, in the order of the mesh; by default the first ranks of the world
    comm: the communicator that is the world; by default the simulated world around, else COMM_WORLD. Free it only
        after the last use of its meshes: they cannot be used afterwards

    >>> create_mesh([("x", 2), ("y", 2)]).dim_names
    ['x', 'y']
    """
    world = _world_on(comm) if comm is not None else current_world()
    dims = _completed_dims(mesh_dims, devices, world)
    mesh = Mesh(range(prod(size for _, size in dims)) if devices is None else devices, dims, mesh_name)
    report_problems()
    check_trace_folder()
    size = world.size if world is not None else abort.comm_world()[1]
    if world is not None or size > 1:
        refuse_larger(mesh, size, simulated=isinstance(world, SimulatedWorld))
    if world is not None:
        mesh = bound_to(world, mesh)
    if mesh.size > 1 and not isinstance(world, SimulatedWorld):
        abort.install_hooks()
    return mesh


def mesh_description(mesh: Mesh) -> str:
    """Return the dimensions and ranks of *mesh* as text, which ranks can compare."""
    ranks = mesh.ranks
    return f"mesh {mesh.dims_text} over ranks {f'{ranks[0]} to {ranks[-1]}' if isinstance(ranks, range) else ranks}"


def _completed_dims(
    mesh_dims: Iterable[tuple[str, int]] | Mapping[str, int] | None,
    devices: Sequence[int] | Sequence[str] | None,
    world: MPIWorld | SimulatedWorld | None,
) -> tuple[MeshDimension, ...]:
    """Return *mesh_dims*, checked and with the size that -1 stands for."""

    def available() -> int:
        return len(devices) if devices is not None else (world or common_world()).size

    if mesh_dims is None:
        return (MeshDimension("x", available()),)
    pairs = mesh_dims.items() if isinstance(mesh_dims, Mapping) else mesh_dims
    if not isinstance(pairs, Iterable):
        raise MeshError(f"mesh dimensions are pairs of a name and a size, not {pairs!r}")
    pair_list = list(pairs)
    unknown_dims = [
        index
        for index, pair in enumerate(pair_list)
        if isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[1]) is int and pair[1] == -1
    ]
    dims = canonical_dims([(pair[0], 1) if index in unknown_dims else pair for index, pair in enumerate(pair_list)])
    if not unknown_dims:
        return dims
    names = [dims[index].name for index in unknown_dims]
    if len(unknown_dims) > 1:
        raise MeshError(f"only one mesh dimension may have size -1, not {', '.join(names)}")
    factor = prod(dim.size for dim in dims)
    if available() % factor:
        raise MeshError(
            f"mesh dimension {names[0]!r} of size -1: {counted(available(), 'device')} cannot be divided by {factor}, "
            "the product of the other sizes"
        )
    size = available() // factor
    return tuple(MeshDimension(dim.name, size) if index in unknown_dims else dim for index, dim in enumerate(dims))


_default_meshes: ContextVar[tuple[Mesh, ...]] = ContextVar("default meshes", default=())


class DefaultMesh(ContextDecorator):
    """The context that `default_mesh` returns; it can be entered any number of times."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def __enter__(self) -> Mesh:
        _default_meshes.set((*_default_meshes.get(), self._mesh))
        return self._mesh

    def __exit__(self, *exception: object) -> None:
        _default_meshes.set(_default_meshes.get()[:-1])


def default_mesh(mesh: Mesh) -> DefaultMesh:
    """Return a context, or a decorator, in which tensors made without a layout are replicated on *mesh*.

    Contexts nest; the mesh from before is restored at the end, after an exception too. Other threads do not see it,
    but the ranks of a simulated world that runs inside do. ``MeshError`` unless *mesh* is a Mesh. Source:
    tf.experimental.dtensor.default_mesh.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(2), [("x", 2)])
    >>> with default_mesh(mesh):
    ...     get_default_mesh() is mesh
    True
    >>> get_default_mesh()
    """
    if not isinstance(mesh, Mesh):
        has_mesh = isinstance(getattr(mesh, "mesh", None), Mesh)
        instead = "pass its .mesh" if has_mesh else "create_mesh([('x', -1)]) makes a mesh of all ranks"
        raise MeshError(f"Expect `mesh` to be `Mesh`, got {type(mesh)}, {quote(mesh)}: {instead}")
    return DefaultMesh(mesh)


run_on = default_mesh
"""The old name of `default_mesh`."""


def get_default_mesh() -> Mesh | None:
    """Return the mesh of the innermost `default_mesh` around, or None.

    >>> import meshcomm as mc
    >>> with mc.default_mesh(mc.create_mesh([("x", 1)])):
    ...     mc.get_default_mesh().dim_names
    ['x']
    >>> mc.get_default_mesh()
    """
    return next(reversed(_default_meshes.get()), None)


def mesh_of_program() -> Mesh:
    """Return the mesh of `meshcomm.default_mesh`; without one, all ranks of the job in one dimension ``x``."""
    return get_default_mesh() or _mesh_of_job(_world())


@lru_cache(maxsize=4)
def _mesh_of_job(world: World | SimulatedWorld) -> Mesh:
    return create_mesh([("x", world.size)])


def default_layout(ndim: int) -> Layout:
    """Return the layout of *ndim* axes replicated on the default mesh; ``MeshError`` if there is none."""
    return Layout.replicated(required_default_mesh("a layout"), ndim)


def required_default_mesh(instead: str) -> Mesh:
    """Return the default mesh. Without one, raise ``MeshError``; its text says what to pass *instead*."""
    mesh = get_default_mesh()
    if mesh is None:
        raise MeshError(
            f"No default mesh has been registered to DTensor. Use meshcomm.default_mesh to specify it, or {instead}"
        )
    return mesh


def location_in(mesh: Mesh) -> Location | None:
    """Return this process's rank set and device in *mesh*, or None if it is outside."""
    world: World = mesh.world.here()
    return world.location(mesh)


def location_between(source: Mesh, target: Mesh) -> Location | None:
    """Return this process's rank set and device in a plan from *source* to *target*; None if it is outside of both.

    ``MeshError`` if the meshes are in different worlds.
    """
    if source is target:
        return location_in(target)
    if source.world is not target.world:
        raise MeshError(f"a relayout stays in one world, but the {source} and the {target} are in different ones")
    world: World = target.world.here()
    return world.location_between(source, target)


def world_of(comm: "MPI.Intracomm | None") -> World:
    """Return the world of *comm*, else the simulated one around, else that of COMM_WORLD, as this rank sees it.

    Collective over *comm* when that is given for the first time.
    """
    return (_world() if comm is None else _world_on(comm)).here()


def is_root() -> bool:
    """Return whether this is rank 0 of the program: for what one rank is to do, such as to write a file.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(mc.is_root))
    [True, False]
    """
    return world_of(None).rank == 0


@_hooks.provides("world")
def _world() -> MPIWorld | SimulatedWorld:
    return current_world() or common_world()


@cache
def common_world() -> MPIWorld:
    """Return the world of COMM_WORLD. Its job ends if a rank fails."""
    _, size = launched() or (0, 1)
    if size > 1:
        abort.start_mpi_with_all_ranks()
    world = mpi_world()
    refuse_alone(world.size, library_name)
    if world.size > 1:
        _install_watchdog(world)
        _close_before_mpi_ends()
    report_problems()
    return world


def _install_watchdog(world: type[MPIWorld] | MPIWorld) -> None:
    if world.ends_job_on_failure:
        watchdog.install()


def _world_on(comm: "MPI.Intracomm") -> MPIWorld:
    """Return the world of *comm*. Its job ends if a rank fails. Collective over *comm* if it is new."""
    _install_watchdog(MPIWorld)
    _close_before_mpi_ends()
    with CallScope("the first use of a communicator", None):
        return mpi_world(comm)


@cache
def _close_before_mpi_ends() -> None:
    """Close all worlds when MPI_Finalize begins, if the program calls it: later, ranks cannot compare their calls."""

    def close(comm: object, keyval: int, value: object) -> None:
        if not forks.is_child:
            _close_at_exit()

    MPI = mpi()
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=close), None)


@atexit.register
def _close_at_exit() -> None:
    """Close all worlds. End the job with an error if an exchange failed, or ranks have made different calls."""
    abort.show_end()
    progress.stop()
    worlds = open_worlds()
    for reason in [*lasting_failures, *(reason for world in worlds for reason in world.failures)]:
        abort.end_job_of_many(reason, shared=host_signals.SharedError(reason, abort.comm_world()[0]))
    if worlds:
        leave_all(math.inf)
    for world in worlds:
        try:
            world.close()
        except MeshcommError as error:
            abort.end_job_of_many(str(error))


# After `_close_at_exit`, as atexit calls handlers in reverse order: a replaced excepthook is found before ranks wait.
if are_several():
    abort.install_hooks()
