"""Barriers."""

from meshcomm.core._arguments import quote
from meshcomm.core.arrays._waiting import compute_waiting
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.agreement import agree, compare_known, fingerprint
from meshcomm.core.ranks.calls import collective
from meshcomm.core.ranks.meshes import mesh_description, mesh_of_program
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.errors import CollectiveTimeout, MeshError


def barrier(mesh: Mesh | None = None, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Wait until all ranks of *mesh* are here, by default all of the program. Collective over the mesh.

    Elementwise operations of this rank that wait are computed first, so a clock read afterwards includes their time.
    Ranks outside of the mesh go on at once. A rank that has waited longer than *timeout_in_ms* raises
    ``CollectiveTimeout``, which names the ranks that may be missing. A rank that arrives later does not wait for ranks
    that have left. Ranks that pass different names raise ``CollectiveMismatch``; with *timeout_in_ms* they do so at
    the next call that ranks agree on. The first collective call on a mesh opens a communicator, and every 1,024th call
    compares those before it. MPI has no timeout for this, so only ``MESHCOMM_TIMEOUT`` counts there. Simulated ranks
    wait as long as another rank can run. Source: tf.experimental.dtensor.barrier.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: barrier(mesh, "start", timeout_in_ms=1000))
    [None, None]
    """
    compute_waiting()
    mesh = mesh_of_program() if mesh is None else mesh
    if not isinstance(mesh, Mesh):
        raise MeshError(f"a barrier is on a Mesh, not on {quote(mesh)}")
    name = "barrier" if barrier_name is None else f"barrier {barrier_name!r}"
    call = f"{name} on {mesh_description(mesh)}"
    with collective(name, mesh) as location:
        _check_timeout(timeout_in_ms)
        if location is None:
            return
        rank_set = location.rank_set
        if timeout_in_ms is None:
            agree(rank_set, call)
            return
        communicator = rank_set.everyone.communicator()
        rank_set.note(fingerprint(call))
        if rank_set.comparison_due:
            compare_known(rank_set)
    # Outside of the call scope: this limit is the caller's, not the watchdog's.
    missing = communicator.barrier(min(timeout_in_ms, 1e15) / 1000)
    if missing:
        raise CollectiveTimeout(_timeout_text(name, timeout_in_ms, rank_set, missing))


def _check_timeout(timeout_in_ms: object) -> None:
    if timeout_in_ms is not None and not (isinstance(timeout_in_ms, int | float) and timeout_in_ms >= 0):
        raise MeshError(f"timeout_in_ms must be a number of milliseconds, zero or more, not {quote(timeout_in_ms)}")


def _timeout_text(name: str, timeout_in_ms: int, rank_set: RankSet, missing: list[int]) -> str:
    ranks = [str(rank_set.ranks[rank]) for rank in missing]
    numbers = ", ".join(ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    names = f"rank {numbers}" if len(ranks) == 1 else f"at least one of the ranks {numbers}"
    return f"{name} timed out: rank {rank_set.world.rank} has waited {timeout_in_ms} ms, but {names} did not arrive"
