"""All calls of mismatches.py: each one changes the digest of calls, no two change it alike, and ranks agree on it.

``mpiexec -n N python digests_of_calls.py``
"""

from mismatches import Calls, names
from mpi4py import MPI

from meshcomm.core.ranks.meshes import location_in

calls, name_of = Calls(), {0: "no call"}
team = location_in(calls.mesh).team
for name in 2 * names(calls.size):  # the first time they are new
    getattr(calls, name)()
for name in names(calls.size):
    team.call_digest = 0
    assert getattr(calls, name)(), name
    same = name_of.setdefault(team.call_digest, name)
    assert same == name, f"{name} is noted as {same}"
everywhere = MPI.COMM_WORLD.allgather(name_of)
assert everywhere == calls.size * [name_of], everywhere
calls.mesh.close()
