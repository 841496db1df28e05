"""What goes wrong in MPI jobs, one function for each case: ``CASE_RANKS=2 mpiexec -n 2 python failures.py NAME``.

Cases that end the job print the time before they do what ends it. The others print "as expected" on every rank.
"""

import builtins
import faulthandler
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

import meshcomm as mc
from meshcomm.core.arrays import compile
from meshcomm.core.failures import abort, host_signals, launchers, watchdog
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.mpi import mpi

SIZE = 0  # the number of ranks, known without MPI
LONG = 600.0  # seconds: longer than any job may take
ARRAY = np.arange(35.0).reshape(7, 5)


@cache
def mesh():
    return mc.create_mesh([("x", SIZE)])


def rows():
    return mc.Layout(["x", mc.UNSHARDED], mesh())


def columns():
    return mc.Layout([mc.UNSHARDED, "x"], mesh())


def exchange(shape=(7, 5)):
    """A relayout, which all ranks must join; its result is checked."""
    array = np.arange(float(np.prod(shape))).reshape(shape)
    made = mc.relayout(mc.distribute(array, rows()), columns())
    assert np.array_equal(made.local, array[made.layout.block_slices(shape, mesh().rank)])


def stamp():
    print(f"stamp {time.time()}\n", end="", flush=True)


def expected():
    print("as expected\n", end="", flush=True)


def raised(kind, call, *texts):
    """Check that *call* raises *kind*, on every rank that comes here."""
    try:
        call()
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
    else:
        missing = [kind.__name__]
    if missing:
        raise AssertionError(f"expected an error with {missing}")


# -- cases that end the job -------------------------------------------------------------------------------------------


def one_raises():
    exchange()
    if mesh().rank == 1:
        stamp()
        raise KeyError("culprit")
    exchange()


def goes_wrong(does, rank=1):
    """Return a case in which *rank* alone does something between two relayouts."""

    def case():
        exchange()
        stamp()
        if mesh().rank == rank:
            does()
        exchange()

    return case


def own_hook():
    sys.excepthook = lambda kind, value, trace: print(f"KeyError: {value}, as shown by the program", flush=True)
    raise KeyError("culprit")


one_raises_with_a_hook_of_its_own = goes_wrong(own_hook)
the_first_rank_is_stopped = goes_wrong(lambda: os.kill(os.getpid(), signal.SIGSTOP), 0)
one_closes_the_mesh = goes_wrong(lambda: mesh().close())
one_calls_sys_exit = goes_wrong(lambda: sys.exit(3))


def one_raises_beside_a_thread():
    exchange()
    if mesh().rank == 1:
        threading.Thread(target=time.sleep, args=(LONG,)).start()  # Python would wait for its end
        stamp()
        raise KeyError("culprit")
    exchange()


def one_is_outside_of_the_mesh():
    t = mc.distribute(ARRAY, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
    exchange()
    stamp()
    t.local.sum()
    exchange()


def one_is_wrong_in_a_known_call():
    watchdog.TELL_ERROR_AFTER = 1.0
    mc.all_reduce(np.ones(2), None)
    stamp()
    mc.all_reduce(np.array([None, 1]) if mesh().rank == 1 else np.ones(2), None)


def into(out):
    """A relayout, known after the first turn, and one into *out*."""
    tensor = mc.distribute(ARRAY, rows())
    mc.relayout(tensor, columns())
    return lambda: mc.relayout(tensor, columns(), out=out)


def one_finds_its_out_wrong():
    out = mc.zeros(ARRAY.shape, "f8", columns())
    call = into(out)
    call()
    out.local.flags.writeable = mesh().rank != 1
    stamp()
    call()
    time.sleep(LONG)  # what the others do until the job ends


class SlowErrors:
    """Standard error of a rank that does something before it prints its first line."""

    def __init__(self, first):
        self._file, self._first = sys.stderr, first

    def write(self, text):
        first, self._first = self._first, None
        if first is not None:
            first()
        return self._file.write(text)

    def __getattr__(self, name):
        return getattr(self._file, name)


def one_is_slow_to_say_what_is_wrong():
    abort.END_WITHIN = LONG  # so that no machine is too slow
    if mesh().rank == 1:
        sys.stderr = SlowErrors(lambda: time.sleep(1.0))
    one_finds_its_out_wrong()


def one_is_slow_to_say_what_all_raise():
    abort.END_WITHIN = LONG
    out = mc.zeros(ARRAY.shape, "f8", columns())
    out.local.flags.writeable = mesh().rank != 1
    tensor = mc.distribute(ARRAY, rows())
    stamp()
    try:
        mc.relayout(tensor, columns(), out=out)
    finally:
        time.sleep(1.5 * (mesh().rank == 1))


def one_is_stopped_before_it_says_what_is_wrong():
    if mesh().rank == 1:
        sys.stderr = SlowErrors(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    one_finds_its_out_wrong()


def one_finds_its_out_wrong_and_goes_on():
    out = mc.zeros(ARRAY.shape, "f8", columns())
    call = into(out)
    call()
    out.local.flags.writeable = mesh().rank != 1
    stamp()
    try:
        call()
    except mc.LayoutError as error:
        print(f"rank {mesh().rank} caught: {error}\n", end="", flush=True)
    out = mc.zeros(ARRAY.shape, "f8", columns())
    for _ in range(100):
        mc.relayout(mc.distribute(ARRAY, rows()), columns(), out=out)
    raise AssertionError("the ranks did not find that they differ")


def ranks_relayout_an_array_in_place_of_a_tensor_at_different_times():
    """All make equally many relayouts of tensors. One that is of another step must not be returned."""
    stamp()
    for step in range(6):
        array = np.full(ARRAY.shape, float(step))
        local = (mesh().rank, step) in ((1, 2), (0, 4))
        made = mc.relayout(array if local else mc.distribute(array, rows()), columns())
        assert (made.local == step).all(), "WRONG"
    raise AssertionError("the ranks did not find that they differ")


REFUSED = {
    "sum": (lambda t: t.sum(axis=0).to_numpy(), 7, lambda t: t.sum(axis=7)),
    "index": (lambda t: t[3].to_numpy(), 1, lambda t: t[99]),
    "to_numpy": (lambda t: t.to_numpy(), 1, lambda t: t.to_numpy(root=99)),
    "root": (lambda t: np.concatenate([t.to_numpy(root=0), t.local][mesh().rank :]), 1, lambda t: t[99]),
    "relayout": (lambda t: mc.relayout(t, columns()).local, 1, lambda t: mc.relayout(t, "columns")),
    "fft": (lambda t: abs(mc.fft.fft(t, axis=0).to_numpy()), 7, lambda t: mc.fft.fft(t, axis=7)),
    "matmul": (lambda t: (np.ones((1, 7)) @ t).to_numpy(), 7, lambda t: t @ t),
}
"""Calls, how many times larger than an element the largest of the result is, and a call that is refused instead."""


def ranks_refuse_a_call_at_different_times():
    """All make equally many calls. A result that is of another step must not be returned."""
    call, factor, wrong = REFUSED[os.environ["CASE_CALL"]]
    stamp()
    for step in range(6):
        tensor = mc.distribute(np.full(ARRAY.shape, float(step)), rows())
        if (mesh().rank, step) not in ((1, 2), (0, 4)):
            assert call(tensor).max() == factor * step, "WRONG"
            continue
        with suppress(ValueError, IndexError):
            wrong(tensor)
            raise AssertionError("nothing was refused")
    raise AssertionError("the ranks did not find that they differ")


def ranks_refuse_a_call_at_different_times_and_go_on_after_each_error():
    """So they make equal calls at different steps, also after a mismatch."""
    call, factor, wrong = REFUSED[os.environ["CASE_CALL"]]
    stamp()
    for step in range(8):
        with suppress(ValueError, IndexError, mc.MeshcommError):
            tensor = mc.distribute(np.full(ARRAY.shape, float(step)), rows())
            result = (wrong if (mesh().rank, step) in ((0, 2), (1, 5)) else call)(tensor)
            assert result.max() == factor * step, "WRONG"


def one_has_errors_that_are_no_refusals():
    """A rank has them alone, and the program is right: no other rank makes a call more, or all know it."""
    one = mesh().rank == 0
    for values in (np.where(np.arange(7) == 0, 0.0, 1.0), np.ones(7)):  # of which rank 0 has the first
        tensor = mc.distribute(np.tile(values[:, None], 5), rows())
        with suppress(FloatingPointError), np.errstate(divide="raise"):
            1.0 / tensor  # local, and wrong for the data of one block
        with suppress(ZeroDivisionError):  # all have exchanged the ghosts by then
            mc.ndimage.generic_filter(tensor, lambda window: 1 / 0 if one else window[0], size=3)
        with suppress(TypeError):
            tensor + ("no operand" if one else 1)
        with suppress(mc.ShapeError):
            tensor.transpose((0, 0) if one else (1, 0))
        exchange()
    print("as expected\n", end="")


def one_block_is_resized():
    exchange()
    block = np.array(ARRAY[rows().block_slices(ARRAY.shape, mesh().rank)])
    tensor = mc.from_local(block, rows(), global_shape=ARRAY.shape)
    if mesh().rank == 1:
        block.resize((1, 1), refcheck=False)
    stamp()
    mc.relayout(tensor, columns())
    time.sleep(LONG)


def one_block_is_resized_and_goes_on():
    try:
        one_block_is_resized()
    except mc.ShapeError as error:
        print(f"rank {mesh().rank} caught: {error}\n", end="", flush=True)
        time.sleep(LONG)


def no_memory_in_a_known_call():
    exchange()
    if mesh().rank == 1:

        def fail(size):
            raise MemoryError

        compile.new_bytes = fail
    stamp()
    exchange()


def no_memory_in_a_known_call_and_goes_on():
    try:
        no_memory_in_a_known_call()
    except MemoryError as error:
        print(f"rank {mesh().rank} caught: {error}\n", end="", flush=True)
    exchange()
    raise AssertionError("the mesh goes on after an exchange without a rank")


def one_makes_a_new_call():
    exchange()
    tensor = mc.distribute(ARRAY, rows())
    mc.relayout(tensor, columns())
    stamp()
    mc.relayout(tensor, mc.Layout.replicated(mesh(), 2) if mesh().rank == 1 else columns())


def one_gets_a_longer_message(relayout=mc.relayout):
    """Rank 1 repeats the relayout of a small array, and the others that of a larger one."""
    small, large = (mc.distribute(np.ones((n, n)), rows()) for n in (4, 60))
    for each in (small, large) * 2:
        relayout(each, columns())
    stamp()
    try:
        relayout(small if mesh().rank == 1 else large, columns())
    except Exception as error:
        print(f"rank {mesh().rank} raised {type(error).__name__}: {error}", flush=True)
    if mesh().rank != 1:
        time.sleep(1)


def one_gets_a_longer_message_by_a_request():
    one_gets_a_longer_message(lambda tensor, layout: mc.start_relayout(tensor, layout).wait())


def one_never_joins():
    watchdog.WARN_AFTER = 0.5
    exchange()
    stamp()
    if mesh().rank == 1:
        time.sleep(LONG)
    exchange()


def one_never_joins_a_mesh_that_is_made_again():
    exchange()
    pair = mc.create_mesh([("x", 2)], devices=[0, 1])
    if mesh().rank < 2:
        mc.zeros((4, 4), "f8", mc.Layout(["x", mc.UNSHARDED], pair)).to_numpy()
        pair.close()
        pair = mc.create_mesh([("x", 2)], devices=[0, 1])
    stamp()
    if mesh().rank == 0:
        mc.barrier(pair, "of the new mesh")
    time.sleep(LONG)


def one_is_interrupted_while_it_ends_the_job():
    exchange()
    if mesh().rank == 1:
        say = abort.say

        def interrupted(text):
            say(text)
            raise KeyboardInterrupt

        abort.say = interrupted
        location_in(mesh()).rank_set.fail(KeyError("culprit"))  # so it ends the job at its exit
        stamp()
    else:
        exchange()


def the_rank_that_tells_why_is_too_slow():
    """One of the waiting ranks tells why the job ends: it does nothing for a long time instead."""
    tell = abort.say

    def say(text):
        signal = host_signals._new_signal("is slow") if "ends the job" in text else None
        if signal is not None:
            time.sleep(LONG)
        tell(text)

    abort.say = say
    exchange()
    stamp()
    if mesh().rank == 0:
        time.sleep(LONG)
    exchange()


def one_returns_early():
    exchange()
    if mesh().rank == 1:
        stamp()
        return
    exchange()


def one_returns_early_on_another_communicator():
    from mpi4py import MPI

    turned = mc.create_mesh([("x", SIZE)], comm=MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank))
    tensor = mc.distribute(ARRAY, mc.Layout(["x", mc.UNSHARDED], turned))
    tensor.to_numpy()
    if MPI.COMM_WORLD.rank == 1:
        stamp()
        return
    tensor.to_numpy()


def one_raises_before_any_mesh():
    here, _ = launchers.launched()
    if here == 1:
        stamp()
        raise KeyError("culprit")
    time.sleep(LONG)


# -- cases that go on -------------------------------------------------------------------------------------------------


def start():
    return mc.start_relayout(mc.distribute(ARRAY, rows()), columns())


def caught():
    """Return the crashes that this process handles itself, as the system knows it."""
    mask = int(re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
    crashes = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
    return [each.name for each in crashes if mask >> (each - 1) & 1]


def crashes_end_the_process():
    signal.signal(signal.SIGBUS, lambda number, frame: None)
    exchange()
    assert caught() == ["SIGBUS"], caught()
    expected()


def crashes_are_reported_by_python():
    faulthandler.enable()
    crashes_are_reported_by_open_mpi()


def crashes_are_reported_by_open_mpi():
    exchange()
    assert {"SIGABRT", "SIGSEGV"} <= set(caught()), caught()
    expected()


def all_drop_a_request():
    exchange()
    start()
    stamp()


def one_drops_a_request():
    exchange()
    request = start()
    if mesh().rank != 1:
        request.wait()
    stamp()


def a_request_is_dropped_and_its_mesh_closed():
    exchange()
    start()
    mesh().close()
    stamp()


def a_request_is_dropped_with_its_communicator():
    from mpi4py import MPI

    user = MPI.COMM_WORLD.Dup()
    ours = mc.create_mesh([("x", SIZE)], comm=user)
    mc.start_relayout(mc.distribute(ARRAY, mc.Layout(["x", mc.UNSHARDED], ours)), mc.Layout([mc.UNSHARDED, "x"], ours))
    ours.close()
    user.Free()
    stamp()


def a_request_is_dropped_and_mpi_finalised():
    from mpi4py import MPI

    exchange()
    request = start()
    pending = request._exchange
    while not getattr(pending, "_pending", pending).test():  # it has arrived, but nobody asked for it
        pass
    MPI.Finalize()
    stamp()


def swaps_known_calls(comm=None):
    """Rank 0 makes the first of two known calls, the others the second one; all catch what they raise."""
    ours = mc.create_mesh([("x", SIZE)], comm=comm)
    rows, columns = mc.Layout(["x", mc.UNSHARDED], ours), mc.Layout([mc.UNSHARDED, "x"], ours)
    calls = [(mc.distribute(ARRAY, rows), columns), (mc.distribute(-ARRAY, columns), rows)]
    for call in calls * 2:
        mc.relayout(*call)
    with suppress(mc.CollectiveMismatch):
        mc.relayout(*calls[ours.rank != 0])


def a_mismatch_is_caught_and_mpi_finalised():
    stamp()
    swaps_known_calls()
    mpi().Finalize()


def a_mismatch_is_caught_and_the_communicator_freed():
    comm = mpi().COMM_WORLD.Dup()
    stamp()
    swaps_known_calls(comm)
    comm.Free()


def differs_without_an_exchange(comm=None):
    """Rank 0 makes another known call than the others; neither moves data."""
    ours = mc.create_mesh([("x", SIZE)], comm=comm)
    tensor = mc.distribute(ARRAY, mc.Layout.replicated(ours, 2))
    calls = [lambda: mc.relayout(tensor, mc.Layout(["x", mc.UNSHARDED], ours)), tensor.sum]
    for call in calls * 2:
        call()
    calls[ours.rank != 0]()
    return ours


def a_late_difference_and_mpi_finalised():
    stamp()
    differs_without_an_exchange()
    mpi().Finalize()


def a_late_difference_and_the_communicator_is_freed():
    comm = mpi().COMM_WORLD.Dup()
    stamp()
    differs_without_an_exchange(comm)
    comm.Free()


def a_late_difference_is_caught_when_the_mesh_is_closed():
    stamp()
    with suppress(mc.CollectiveMismatch):
        differs_without_an_exchange().close()


def some_wait_in_different_calls_though_others_have_ended():
    """The others need no message of these ranks in their last call."""
    halves = [[0, 1], [2, 3]]
    for _ in range(3):
        mc.all_reduce(np.ones(3), halves)
        mc.barrier(mesh())
    stamp()
    if mesh().rank == 3:
        mc.barrier(mesh())
    else:
        mc.all_reduce(np.ones(3), halves)


def some_wait_in_other_groups_though_others_have_ended():
    """Both wait in all_gather: only the digests of their calls tell."""
    halves, pairs = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    for _ in range(3):
        mc.all_gather([mesh().rank], halves, 0)
        mc.all_gather([mesh().rank], pairs, 0)
    stamp()
    mc.all_gather([mesh().rank], pairs if mesh().rank == 3 else halves, 0)


def others_compute_for_long():
    exchange()
    if mesh().rank != 1:
        time.sleep(3.0)
    if mesh().rank not in (1, 2):
        half = mc.create_mesh([("x", 1)], devices=[mesh().rank])
        mc.distribute(ARRAY, mc.Layout.replicated(half, 2)).to_numpy()
    expected()


def root_waits_for_a_late_rank():
    tensor = mc.distribute(ARRAY, rows())
    exchange()
    if mesh().rank == SIZE - 1:
        time.sleep(3.0)  # the others have sent their blocks to root, and ended
    tensor.to_numpy(root=0)
    expected()


def all_call_sys_exit():
    exchange()
    expected()
    sys.exit(3)


def cached_calls_differ():
    """Run with MESHCOMM_CHECK=1: without it such calls are found at the next new one only."""
    small, large = (4, 6), (6, 4)
    exchange(small)
    exchange(large)
    raised(mc.CollectiveMismatch, lambda: exchange(small if mesh().rank == 1 else large), "(4, 6)", "(6, 4)")
    raised(mc.MeshError, exchange, "close() the mesh and make it again")
    mesh().close()
    mesh.cache_clear()
    exchange()
    expected()


def meshes_are_asked_for_in_any_order():
    """Each rank of three is in two meshes of two ranks, and hears of them in an order of its own."""
    comm = mpi().COMM_WORLD
    pairs = [[0, 1], [1, 2], [0, 2]]
    for _ in range(comm.rank):
        pairs.append(pairs.pop(0))
    meshes = {tuple(pair): mc.create_mesh([("x", 2)], devices=pair) for pair in pairs}
    assert sum(each.rank is not None for each in meshes.values()) == 2
    for pair in sorted(meshes):
        mc.barrier(meshes[pair])
    expected()


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupted_again_and_again(turn):
    """What a call returns is right, also after an interrupt of another one; else the mesh says that it is unusable."""

    def handler(*_):
        raise Interrupted

    here, count = mesh(), 0
    turn()
    signal.signal(signal.SIGALRM, handler)
    stamp()
    try:
        while True:
            try:
                if here.rank == SIZE - 1:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
                while True:
                    turn()
                    count += 1
            except (Interrupted, mc.CollectiveMismatch):
                pass
    except mc.MeshError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(f"rank {here.rank} ends after {count} calls: {error}", flush=True)
        raise


def large(number=0):
    return np.arange(64.0 * 64).reshape(64, 64) + number


def moved_right(made):
    # numpy.array_equal would take an exception of the handler for a difference.
    wanted = large()[columns().block_slices(made.shape, mesh().rank)]
    assert (made.local == wanted).all(), "WRONG"


def a_handler_raises_in_relayout():
    tensor = mc.distribute(large(), rows())
    interrupted_again_and_again(lambda: moved_right(mc.relayout(tensor, columns())))


def a_handler_raises_in_start_relayout():
    tensor = mc.distribute(large(), rows())
    interrupted_again_and_again(lambda: moved_right(mc.start_relayout(tensor, columns()).wait()))


def a_handler_raises_in_start_update():
    halo = mc.halo(mc.distribute(large(), rows()), 1, "periodic")
    wanted = np.pad(large(), 1, mode="wrap")
    start, stop, _ = rows().block_slices(wanted[1:-1, 1:-1].shape, mesh().rank)[0].indices(64)

    def turn():
        halo.wait()  # for what was interrupted
        halo.local[0] = halo.local[-1] = -1
        halo.start_update()
        halo.wait()
        assert (halo.local == wanted[start : stop + 2]).all(), "WRONG"

    interrupted_again_and_again(turn)


def a_handler_raises_with_root():
    numbers = itertools.count()

    def turn():
        number, is_root = next(numbers), mesh().rank == 0
        whole = mc.distribute(large(number) if is_root else None, rows(), root=0).to_numpy(root=0)
        assert not is_root or (whole == large(number)).all(), "WRONG"

    interrupted_again_and_again(turn)


def child_is_forked():
    exchange()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            raised(mc.MeshError, exchange, "forked")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    exchange()
    assert subprocess.run([sys.executable, "-c", "pass"], check=True).returncode == 0
    expected()


def children_end_in_all_ways():
    exchange()
    for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        child = os.fork()
        if child == 0:
            getattr(module, name)(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, name
    exchange()
    expected()


def mpi_is_finalised():
    from mpi4py import MPI

    tensor = mc.distribute(ARRAY, rows())
    exchange()
    MPI.Finalize()
    raised(mc.MeshError, lambda: mc.relayout(tensor, columns()), "finalised")
    raised(mc.MeshError, exchange, "finalised")
    expected()


def main(*names):
    global SIZE
    SIZE = int(os.environ["CASE_RANKS"])
    if names != ("one_raises_before_any_mesh",):
        mpi()  # the start of MPI, for which a busy machine needs long, is not counted
    for name in names:
        globals()[name]()


if __name__ == "__main__":
    main(*sys.argv[1:])
