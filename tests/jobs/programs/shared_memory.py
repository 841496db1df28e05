"""Jobs whose ranks share memory, one function for each case: ``mpiexec -n 2 python shared_memory.py NAME``.

Cases that go well print "as expected" on every rank.
"""

import os
import resource
import signal
import subprocess
import sys

import numpy as np
from mpi4py import MPI

from meshcomm._kernels import BoxCopies
from meshcomm.core.failures import flights, watchdog
from meshcomm.core.memory import pools
from meshcomm.core.memory._rendezvous import Routes
from meshcomm.core.ranks import rendezvous as sharing
from meshcomm.core.ranks.mpi import MPICommunicator

comm = MPI.COMM_WORLD.Dup()
RANK, SIZE = comm.rank, comm.size
NBYTES = 10_000


def expected():
    print("as expected\n", end="", flush=True)


def opened():
    return sharing.open_rendezvous(MPICommunicator(comm), tuple(range(comm.size)))[0]


def gather(rendezvous, source, target):
    """Gather the blocks of all ranks; return what does not get through."""
    others = [(peer, False) for peer in range(SIZE) if peer != RANK]
    routes = Routes(SIZE, RANK, others, others, copies)
    rendezvous.exchange(routes, 1, source, target)
    return routes.left


def copies(reads, writes):
    return (
        _copies([NBYTES] * SIZE, [SIZE * NBYTES], [(peer, 0, peer) for peer in (*reads, RANK)]),
        _copies([NBYTES], [SIZE * NBYTES] * SIZE, [(0, peer, RANK) for peer in writes]),
    )


def _copies(sources, targets, boxes):
    source, target, at = (np.array(column, dtype=np.intp).reshape(-1) for column in np.array(boxes).reshape(-1, 3).T)
    ones = np.ones((len(source), 1), dtype=np.intp)
    return BoxCopies(sources, targets, 1, source, 0 * at, ones, target, at * NBYTES, ones, ones * NBYTES)


def gathered(rendezvous, shares=True):
    source = pools.allocate(NBYTES) if shares else np.empty(NBYTES, np.uint8)
    target = np.empty(SIZE * NBYTES, np.uint8)
    source[:] = RANK + 1
    assert gather(rendezvous, source, target) is None
    assert (target.reshape(SIZE, NBYTES) == np.arange(1, SIZE + 1)[:, None]).all()
    return source, target


def progress():
    """A send that needs its sender's progress, while the sender waits in an exchange."""
    rendezvous = opened()
    big = np.full(2**22, RANK, np.uint8)
    if RANK == 0:
        request = comm.Isend(big, 1)
        gathered(rendezvous)
        request.Wait()
    else:
        comm.Recv(big, 0)
        assert (big == 0).all()
        gathered(rendezvous)
    expected()


def after_finalize():
    rendezvous = opened()
    source, _ = gathered(rendezvous)
    late = pools.allocate(2**20)
    late[:] = 3
    rendezvous.close()
    comm.Free()
    MPI.Finalize()
    assert (source == RANK + 1).all()
    assert (late == 3).all()
    another = pools.allocate(2**21)
    another[:] = 4
    sys.last = another, source
    expected()


def addresses():
    """The bytes of address space that this process has taken."""
    with open("/proc/self/statm") as found:
        return int(found.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def little_address_space():
    """The ranks share memory and keep large blocks, and more than half of the address space is left."""
    before, some = addresses(), 2**33
    resource.setrlimit(resource.RLIMIT_AS, (before + some, before + some))
    assert opened() is not None, sharing.describe()
    assert pools.allocate(2**20) is not None
    assert pools._unshared_pool() is not None
    pools.allocate_unshared(2**22)[:] = 1
    assert addresses() - before < some / 2
    comm.Barrier()
    expected()


def another_user():
    """Root and this user can open what this process has; another user cannot."""
    rendezvous = opened()
    source, _ = gathered(rendezvous)
    secret = b"a secret of this user"
    source[: len(secret)] = np.frombuffer(secret, np.uint8)
    flights.write("to see who may read it")
    me, folder = f"/proc/{os.getpid()}", flights.folder()
    paths = [f"{me}/fd/{pools.shared.fd}", f"{me}/maps", f"{me}/mem", folder / f"rank-{RANK}.json"]

    def read(path, **user):
        return subprocess.run(["head", "-c", "10000000", path], capture_output=True, check=False, **user)

    assert secret in read(paths[0]).stdout
    assert read(paths[3]).stdout
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    assert b"State" in read(f"{me}/status", **nobody).stdout, "the test can look at all"
    for path in paths:
        seen = read(path, **nobody)
        assert b"denied" in seen.stderr, (path, seen)
        assert seen.stdout == b"", (path, seen)
    comm.Barrier()
    expected()


def one_is_killed():
    rendezvous = opened()
    gathered(rendezvous)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gathered(rendezvous)


def one_is_interrupted():
    watchdog.install()
    rendezvous = opened()
    gathered(rendezvous)
    if RANK == 1:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        gathered(rendezvous)
    else:
        import time

        time.sleep(600)


globals()[sys.argv[1]]()
