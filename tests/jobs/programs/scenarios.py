"""Scenarios in which ranks wait in vain: ``mpiexec -n 4 python scenarios.py WAY OPERATION``.

All ranks make the same calls first. Then rank 1 goes wrong in some way, and the others make the call of an operation.
"""

import os
import signal
import sys
import threading
import time
from functools import cache

import numpy as np

import meshcomm as mc
from meshcomm.core.failures.launchers import launched
from meshcomm.core.ranks.mpi import mpi

ARRAY = np.arange(48.0).reshape(6, 8)
BEFORE_MPI = ("raises_before_the_first_mesh", "exits_before_the_first_mesh")
LONG = 600.0


@cache
def me():
    """Return which rank this is. Not known before `main`: the process may be forked from one that is no rank."""
    rank, _ = launched()
    return rank


@cache
def mesh():
    _, size = launched()
    return mc.create_mesh([("x", size)])


def layout(*specs):
    return mc.Layout(list(specs), mesh())


@cache
def tensor():
    return mc.distribute(ARRAY, layout("x", mc.UNSHARDED))


def stamp():
    print(f"stamp {time.time()}\n", end="", flush=True)


# -- what the others do -----------------------------------------------------------------------------------------------


def relayout():
    return mc.relayout(tensor(), layout(mc.UNSHARDED, "x"))


def to_numpy():
    return tensor().to_numpy()


def barrier():
    mc.barrier(mesh())


def all_reduce():
    mc.all_reduce(np.ones(3), None)


def all_sum():
    np.sum(tensor())


def request():
    mc.start_relayout(tensor(), layout(mc.UNSHARDED, "x")).wait()


def polling():
    started = mc.start_relayout(tensor(), layout(mc.UNSHARDED, "x"))
    while not started.test():
        pass


def polling_with_pauses():
    started = mc.start_relayout(tensor(), layout(mc.UNSHARDED, "x"))
    while not started.test():
        time.sleep(0.1)


def agreement():
    mc.relayout(tensor(), layout(mc.UNSHARDED, mc.UNSHARDED))


def close():
    mesh().close()


def gather_by_rank_0():
    tensor().to_numpy(root=0)
    mc.barrier(mesh())


def distribute_from_rank_0():
    mc.distribute(ARRAY if me() == 0 else None, layout("x", mc.UNSHARDED), root=0)


# -- what rank 1 does -------------------------------------------------------------------------------------------------


def sleeps():
    time.sleep(LONG)


def computes():
    while True:
        np.ones(1000).sum()


def returns():
    os.environ["SCENARIO"] = "over"


def exits_with_0():
    sys.exit(0)


def exits_with_3():
    sys.exit(3)


def raises():
    raise KeyError("culprit")


def raises_in_a_thread():
    def fail():
        raise KeyError("culprit")

    threading.Thread(target=fail).start()
    time.sleep(LONG)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def leaves_at_once():
    os._exit(1)


def reads_a_pipe():
    os.read(os.pipe()[0], 1)


def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def receives_from_nobody():
    from mpi4py import MPI

    MPI.COMM_SELF.Dup().recv()


def waits_on_another_mesh():
    other = mc.create_mesh([("x", 2)], devices=[0, 1])
    mc.distribute(ARRAY, mc.Layout.replicated(other, 2)).to_numpy()
    mc.barrier(other)


def makes_another_call():
    mc.barrier(mesh(), "another")


def waits_for_a_request():
    request()


def finalises():
    from mpi4py import MPI

    MPI.Finalize()


def is_interrupted():
    signal.raise_signal(signal.SIGINT)


def forgets_a_request():
    mc.start_relayout(tensor(), layout(mc.UNSHARDED, "x"))


# -- scenarios of their own: no operation -----------------------------------------------------------------------------


def interrupted_while_waiting():
    if me() == 0:
        threading.Timer(0.5, lambda: (stamp(), os.kill(os.getpid(), signal.SIGINT))).start()
    if me() == 1:
        time.sleep(LONG)
    relayout()


def forked_child_exits():
    stamp()
    if me() == 1 and os.fork() == 0:
        sys.exit(7)
    if me() == 1:
        _, status = os.wait()
        stamp()
        assert os.waitstatus_to_exitcode(status) == 7
        sleeps()
    relayout()


def forked_child_raises():
    stamp()
    if me() == 1 and os.fork() == 0:
        raise KeyError("child")
    if me() == 1:
        _, status = os.wait()
        stamp()
        assert os.waitstatus_to_exitcode(status) == 1
        sleeps()
    relayout()


def deadlock_across_meshes():
    pair = mc.create_mesh([("x", 2)], devices=[0, 1])
    mc.barrier(pair)
    stamp()
    if me() == 1:
        mc.barrier(pair)
    else:
        mc.barrier(mesh())


def makes_one_call_less():
    stamp()
    for _ in range(3 - (me() == 1)):
        barrier()
    to_numpy()
    barrier()


def makes_one_call_more():
    stamp()
    for _ in range(3 + (me() == 1)):
        relayout()
    barrier()
    to_numpy()


def makes_a_new_call_instead_of_a_known_one():
    """Both are relayouts, and both come after an agreement without an exchange."""
    stamp()
    barrier()
    mc.relayout(tensor(), layout(mc.UNSHARDED, "x" if me() != 1 else mc.UNSHARDED))


def main(way, operation=None):
    if way not in BEFORE_MPI:
        mpi()  # the start of MPI, for which a busy machine needs long, is not counted
    if way == "raises_before_the_first_mesh":
        if me() == 1:
            stamp()
            raises()
        barrier()
    if way == "exits_before_the_first_mesh":
        stamp()
        if me() == 1:
            sys.exit(0)
        mc.create_mesh()
    if way == "has_another_setting" and me() == 1:
        os.environ["MESHCOMM_CHECK"] = "1"
    if way == "has_another_setting":
        stamp()
    relayout()
    to_numpy()
    barrier()
    if operation is None:
        globals()[way]()
        return
    if operation != "agreement":
        for known in (all_reduce, all_sum, request):
            known()
    stamp()
    globals()[way if me() == 1 else operation]()


if __name__ == "__main__":
    main(*sys.argv[1:])
