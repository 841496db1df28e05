"""Groups of ranks in one process: each rank is a thread with a pool of its own, and some ranks share memory.

Their communicator does everything as late as MPI may do it: it reads sent data when the receiver waits, and the data
of a nonblocking AllToAll moves when all ranks wait. So a test notices if a buffer is used again too early.
"""

import queue
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from meshcomm import Machine
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.memory import pools
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.rank_sets import Group, RankSet, World
from meshcomm.core.transport.exchange import from_boxes
from support.in_process_ranks import MIB, Node, block, outcomes

ALONE = None
"""The host of a rank that shares no memory."""


class FailedElsewhere(BaseException):
    """Another rank has raised an exception."""


class Message:
    """Bytes that were sent, and an event that is set when the receiver has taken them."""

    def __init__(self, data):
        self.data, self.taken = data, threading.Event()


class Wires:
    """The connections of the ranks: a queue for each pair of ranks and kind of message."""

    def __init__(self, size):
        self._queues, self._lock = defaultdict(queue.Queue), threading.Lock()
        self.barrier = threading.Barrier(size)
        self.failed = False

    def fail(self):
        self.failed = True
        self.barrier.abort()

    def check(self):
        if self.failed:
            raise FailedElsewhere

    def put(self, key, value):
        self._queue(key).put(value)

    def get(self, key):
        messages = self._queue(key)
        while True:
            try:
                return messages.get(timeout=0.05)
            except queue.Empty:
                self.check()

    def _queue(self, key):
        with self._lock:  # or two threads could each make the queue of a key
            return self._queues[key]

    def wait_until_taken(self, message):
        while not message.taken.wait(0.05):
            self.check()


class InFlight:
    """Messages that are not complete."""

    def __init__(self, communicator, outgoing, incoming, collective):
        self.communicator, self.outgoing, self.incoming, self.collective = communicator, outgoing, incoming, collective

    def wait(self):
        if self.collective:
            try:
                self.communicator.wires.barrier.wait()
            except threading.BrokenBarrierError:
                raise FailedElsewhere from None
        for key, into in self.incoming:
            self.communicator.take(key, into)
        for message in self.outgoing:
            self.communicator.wires.wait_until_taken(message)
        self.incoming, self.outgoing, self.collective = [], [], False  # complete: to wait again does nothing

    def test(self):
        self.wait()
        return True


class Numbers:
    """A number that this rank sends to *targets*, and compares with the numbers from *sources*."""

    def __init__(self, communicator, kind, targets, sources):
        self.communicator, self.kind, self.targets, self.sources = communicator, kind, targets, sources

    def start(self, number):
        self.own_number = number
        for peer in self.targets:
            self.communicator.wires.put((self.kind, self.communicator.rank, peer), number)

    def differing(self):
        wires, rank = self.communicator.wires, self.communicator.rank
        return [peer for peer in self.sources if wires.get((self.kind, peer, rank)) != self.own_number]

    def equal(self):
        return not self.differing()


class ThreadChannel:
    """Messages in buffers of their own; `take` makes a new channel each time."""

    closed = False

    def __init__(self, communicator, send, receive):
        self.communicator, self.sides = communicator, (send, receive)
        self.send, self.receive = (np.zeros(size, np.uint8) for *_, size in (send, receive))
        self.buffers = (self.send, *send[:2]), (self.receive, *receive[:2])

    def take(self):
        return ThreadChannel(self.communicator, *self.sides)

    def start(self):
        self.in_flight = self.communicator._start("channel", *self.buffers)

    def test(self):
        return self.in_flight.test()

    def wait(self):
        self.in_flight.wait()

    def give_back(self):
        pass


class ThreadCommunicator(Communicator):
    """A communicator of threads. It counts received bytes by sender, and lists its collective calls."""

    def __init__(self, wires, size, rank):
        self.wires, self.size, self.rank = wires, size, rank
        self.received = Counter()  # bytes by sender
        self.calls = []

    def take(self, key, buffer):
        message = self.wires.get(key)
        assert len(message.data) == len(buffer), (key, len(message.data), len(buffer))
        buffer[:] = message.data
        self.received[key[1]] += len(buffer)
        message.taken.set()

    def _start(self, kind, send, receive, collective=False):
        (data, counts, offsets), (buffer, buffer_counts, buffer_offsets) = send, receive
        outgoing, incoming = [], []
        for peer in range(self.size):
            if counts[peer]:
                message = Message(data[offsets[peer] : offsets[peer] + counts[peer]])
                self.wires.put((kind, self.rank, peer), message)
                outgoing.append(message)
            if buffer_counts[peer]:
                key = kind, peer, self.rank
                incoming.append((key, buffer[buffer_offsets[peer] : buffer_offsets[peer] + buffer_counts[peer]]))
        return InFlight(self, outgoing, incoming, collective)

    def alltoallv(self, send, receive):
        self.start_alltoallv(send, receive).wait()

    def start_alltoallv(self, send, receive):
        self.calls.append("alltoallv")
        return self._start("alltoallv", send, receive, collective=True)

    def start_messages(self, send, receive):
        return self._start("messages", send, receive)

    def permute(self, data, to, into, source):
        counts, into_counts, zeros = np.zeros((3, self.size), int)
        if to is not None:
            counts[to] = len(data)
        if source is not None:
            into_counts[source] = len(into)
        self._start("messages", (data, counts, zeros), (into, into_counts, zeros)).wait()

    def allgatherv(self, send, receive):
        self.calls.append("allgatherv")
        sides = [len(send)] * self.size, [0] * self.size
        self._start("allgatherv", (send, *sides), receive, collective=True).wait()

    def _gathered(self, value):
        for peer in range(self.size):
            self.wires.put(("value", self.rank, peer), value)
        return [self.wires.get(("value", peer, self.rank)) for peer in range(self.size)]

    def allreduce_max(self, values):
        self.calls.append("allreduce_max")
        return np.max(self._gathered(values), axis=0)

    def start_comparison(self, number):
        numbers = Numbers(self, "number", range(self.size), range(self.size))
        numbers.start(number)
        return numbers

    def numbers(self, to, sources):
        return Numbers(self, "pair number", to, sources)

    def channels(self, send, receive):
        return ThreadChannel(self, send, receive)

    def allgather(self, message):
        self.calls.append("allgather")
        return self._gathered(message)

    def gather(self, message, root):
        self.calls.append("gather")
        gathered = self._gathered(message)
        return gathered if self.rank == root else []

    def broadcast(self, data, root):
        data[:] = self._gathered(data.copy())[root]

    def send(self, data, rank):
        zeros = [0] * self.size
        counts = [len(data) * (peer == rank) for peer in range(self.size)]
        self._start("pair", (data, counts, zeros), (data, zeros, zeros)).wait()

    def receive(self, into, rank):
        self.take(("pair", rank, self.rank), into)

    def barrier(self, seconds):
        self._gathered(None)
        return []

    def split(self, color, key):
        raise NotImplementedError("a group of all ranks is enough for these tests")

    def progress(self):
        self.wires.check()

    def free(self):
        pass


class ThreadWorld(World):
    """The world as one of the threads sees it."""

    def __init__(self, communicator):
        super().__init__(communicator.size, communicator.rank)
        self.communicator = communicator

    def connect(self, ranks):
        return self.communicator


class ThreadPools:
    """Replaces the pool of the process: each thread uses the pool of its rank."""

    def __init__(self):
        self.thread_local = threading.local()

    def allocate(self, nbytes):
        return None if self.pool is None else self.pool.allocate(nbytes)

    def locate(self, array):
        return -1 if self.pool is None else self.pool.locate(array)

    @property
    def pool(self):
        return getattr(self.thread_local, "pool", None)


class Rank:
    """One rank: its position in the group, which is its number; its group, its pool and its communicator."""

    def __init__(self, position, group, pool):
        self.position, self.group, self.pool, self.communicator = position, group, pool, group.opened

    def block(self, nbytes, shared):
        """Return a new block, in the pool if *shared* and if there is one, else in memory that is not shared."""
        return block(self.pool, nbytes, shared and self.pool is not None)


class Ranks:
    """Ranks on these *hosts*: ranks of one host share memory, except on the host `ALONE`.

    Use it in `own_pools`, so that each rank has its own pool.
    """

    def __init__(self, hosts, stand_in, share=4 * MIB):
        self.stand_in = stand_in
        self.wires = Wires(len(hosts))
        communicators = [ThreadCommunicator(self.wires, len(hosts), rank) for rank in range(len(hosts))]
        self.ranks = [None] * len(hosts)
        nodes = tuple(rank if host is ALONE else hosts.index(host) for rank, host in enumerate(hosts))
        for node in sorted(set(nodes)):
            members = [rank for rank, rank_node in enumerate(nodes) if rank_node == node]
            shared_node = (
                Node(len(members), share, [self.wires.check] * len(members), members) if len(members) > 1 else None
            )
            for i, rank in enumerate(members):
                rank_set = RankSet(ThreadWorld(communicators[rank]), range(len(hosts)))
                rank_set._machine, group = Machine(nodes=nodes), rank_set.everyone
                assert isinstance(group, Group)
                group.opened = communicators[rank]
                if shared_node is not None:
                    group.rendezvous = shared_node.rendezvous[i]
                if len(set(nodes)) < len(nodes):
                    group.nodes = nodes
                self.ranks[rank] = Rank(rank, group, shared_node.pools[i] if shared_node is not None else None)

    def run(self, call):
        """Return what ``call(rank)`` returns or raises, for each `Rank`, each in its thread."""

        def body(number):
            self.stand_in.thread_local.pool = self.ranks[number].pool
            try:
                return call(self.ranks[number])
            except BaseException:
                self.wires.fail()
                raise

        return outcomes(body, range(len(self.ranks)), len(self.ranks))

    def results(self, call):
        """Return the results of `run`, but raise the exception of a rank, if any."""
        results = self.run(call)
        for result in sorted(results, key=lambda result: isinstance(result, FailedElsewhere)):
            if isinstance(result, BaseException):
                raise result
        return results


@contextmanager
def own_pools(monkeypatch):
    """A context in which `meshcomm.core.memory.pools` uses the pool of the calling rank."""
    stand_in = ThreadPools()
    with monkeypatch.context() as patched:
        patched.setattr(pools, "shared", stand_in)
        yield lambda hosts, **options: Ranks(hosts, stand_in, **options)


# -- what they exchange -----------------------------------------------------------------------------------------------


class Case:
    """An array of *shape* and *dtype*, and the box of each rank before (*sources*) and after (*targets*)."""

    def __init__(self, shape, sources, targets, dtype="u1", seed=0):
        self.dtype = np.dtype(dtype)
        rng = np.random.default_rng(seed)
        values = rng.integers(256, size=(*shape, self.dtype.itemsize), dtype=np.uint8)
        self.array = values.view(f"V{self.dtype.itemsize}")[..., 0]
        self.sources: list[Box] = sources
        self.targets: list[Box] = targets

    def tensor(self, position):
        return from_boxes(self.dtype.itemsize, position, self.sources, self.targets)

    def source(self, position):
        return self._bytes(self.sources[position])

    def target(self, position):
        return self._bytes(self.targets[position])

    def _bytes(self, box):
        block = self.array[tuple(slice(*ends) for ends in box)]
        return np.frombuffer(block.tobytes(), np.uint8)

    @property
    def max_block_bytes(self):
        boxes = [*self.sources, *self.targets]
        return max(int(np.prod([b - a for a, b in box])) for box in boxes) * self.dtype.itemsize


def cut(n, count):
    ends = [n * i // count for i in range(count + 1)]
    return list(pairwise(ends))


def rows_to_columns(size, shape=(7, 5), **options):
    """Return a case in which each rank has some rows, and gets some columns."""
    rows = [(interval, (0, shape[1])) for interval in cut(shape[0], size)]
    columns = [((0, shape[0]), interval) for interval in cut(shape[1], size)]
    return Case(shape, rows, columns, **options)


def anything(size, seed, **options):
    """Return a case in which each rank has some rows, perhaps none, and gets any box; boxes may overlap."""
    rng = np.random.default_rng([seed, size])
    shape = tuple(rng.integers(1, 12, 2).tolist())
    ends = sorted([0, shape[0], *rng.integers(0, shape[0] + 1, size - 1).tolist()])
    rows = [(interval, (0, shape[1])) for interval in pairwise(ends)]
    boxes = []
    for _ in range(size):
        box = [sorted(rng.integers(0, n + 1, 2).tolist()) for n in shape]
        boxes.append(tuple((a, b) for a, b in box))
    return Case(shape, rows, boxes, seed=seed, **options)
