"""Jobs whose ranks share memory, one function for each case: ``mpiexec -n 2 python shared_cases.py NAME``.

Cases that go well print "as expected" on every rank.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

from meshcomm._kernels import BoxCopies
from meshcomm.memory import pools
from meshcomm.ranks import rendezvous, watchdog
from meshcomm.ranks.mpi import MPICommunicator

comm = MPI.COMM_WORLD.Dup()
RANK, SIZE = comm.rank, comm.size
NBYTES = 10_000


def expected():
    print("as expected\n", end="", flush=True)


def met():
    return rendezvous.meet(MPICommunicator(comm), tuple(range(comm.size)))[0]


def gather(meeting, source, target):
    """Gather the blocks of all ranks, through the meeting; what it leaves is not there."""
    routes = shared.Routes(
        SIZE,
        RANK,
        [(place, False) for place in range(SIZE) if place != RANK],
        [(place, False) for place in range(SIZE) if place != RANK],
    )
    return shared.exchange(meeting, routes, copies, 1, source, target)


def copies(reads, writes):
    return (
        _copies([NBYTES] * SIZE, [SIZE * NBYTES], [(place, 0, place) for place in (*reads, RANK)]),
        _copies([NBYTES], [SIZE * NBYTES] * SIZE, [(0, place, RANK) for place in writes]),
    )


def _copies(sources, targets, pieces):
    source, target, at = (np.array(column, dtype=np.intp).reshape(-1) for column in np.array(pieces).reshape(-1, 3).T)
    ones = np.ones((len(source), 1), dtype=np.intp)
    return BoxCopies(sources, targets, 1, source, 0 * at, ones, target, at * NBYTES, ones, ones * NBYTES)


def gathered(meeting, shares=True):
    source = pools.allocate(NBYTES) if shares else np.empty(NBYTES, np.uint8)
    target = np.empty(SIZE * NBYTES, np.uint8)
    source[:] = RANK + 1
    assert gather(meeting, source, target) is None
    assert (target.reshape(SIZE, NBYTES) == np.arange(1, SIZE + 1)[:, None]).all()
    return source, target


def progress():
    """A send that needs its sender's progress, while the sender waits in an exchange."""
    meeting = met()
    big = np.full(2**22, RANK, np.uint8)
    if RANK == 0:
        request = comm.Isend(big, 1)
        gathered(meeting)
        request.Wait()
    else:
        comm.Recv(big, 0)
        assert (big == 0).all()
        gathered(meeting)
    expected()


def after_finalize():
    meeting = met()
    source, _ = gathered(meeting)
    late = pools.allocate(2**20)
    late[:] = 3
    meeting.close()
    comm.Free()
    MPI.Finalize()
    assert (source == RANK + 1).all()
    assert (late == 3).all()
    another = pools.allocate(2**21)
    another[:] = 4
    sys.last = another, source
    expected()


def off():
    assert met() is None
    assert pools.allocate(10) is None
    assert rendezvous.describe() == "off: MESHCOMM_SHARED_MEMORY=0 on rank 0", rendezvous.describe()
    expected()


def tiny():
    """16 KiB per rank: the fifth block is no shared one, and all goes on."""
    meeting = met()
    held = [pools.allocate(4096) for _ in range(5)]
    assert [block is None for block in held] == [False] * 4 + [True]
    del held
    gathered(meeting)
    expected()


def no_such_file():
    """What /proc shows is not the pool: of another process, say."""
    own = rendezvous._offer
    if RANK == 1:
        fd = os.open(os.devnull, os.O_RDONLY)
        rendezvous._offer = lambda *args: own(*args) | {"fd": fd}
    assert met() is None
    assert "cannot be mapped" in rendezvous.describe(), rendezvous.describe()
    assert rendezvous.describe().startswith("off")
    rendezvous._offer = own
    gathered(met())
    expected()


def one_is_killed():
    meeting = met()
    gathered(meeting)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gathered(meeting)


def one_is_interrupted():
    watchdog.install()
    meeting = met()
    gathered(meeting)
    if RANK == 1:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        gathered(meeting)
    else:
        import time

        time.sleep(600)


globals()[sys.argv[1]]()
