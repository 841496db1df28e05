"""Aggregators: which ranks exchange messages between nodes for the others, and the offsets of boxes in the messages.

Only descriptions: `meshcomm.core.transport.relay` runs them.

The ranks of a node copy their boxes for another node to one of them, the aggregator for that node. It exchanges one
message with the aggregator on the other node. The ranks there copy their boxes from this message. Each rank of a node
is the aggregator for some of the other nodes: it sends about (nodes / ranks per node) messages, instead of one to
every rank on another node. A box that several ranks of a node need crosses to that node once.

    node 0                                        node 1
    rank 0 ── copies ──┐                      ┌── copies ──► rank 3
    rank 1 ── copies ──┴► rank 0 ── message ──► rank 3 ──────┤
    rank 2 ── copies ──┘  (aggregator for 1)    (for 0)      └──► rank 4
"""

from collections.abc import Callable, Sequence

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._tuning import LINE
from meshcomm.core._types import Indices
from meshcomm.core.layouts.boxes import Boxes, as_rows, from_rows
from meshcomm.core.memory.copies import Strided
from meshcomm.core.transport.exchange import BoxExchange


class Nodes:
    """The nodes of a group, from a node number for each position, and the aggregators.

    >>> nodes = Nodes([7, 7, 8, 8, 8, 9])
    >>> nodes.of.tolist(), nodes.members(1).tolist()
    ([0, 0, 1, 1, 1, 2], [2, 3, 4])
    >>> nodes.aggregator(0, 1), nodes.aggregator(1, 0), nodes.aggregator(0, 2), nodes.aggregator(2, 0)
    (0, 3, 1, 5)
    """

    def __init__(self, numbers: Sequence[int] | Indices) -> None:
        _, node_of = np.unique(np.asarray(numbers), return_inverse=True)
        self.of: Indices = node_of.reshape(-1).astype(np.intp)
        self.count = int(self.of.max()) + 1

    def members(self, node: int) -> Indices:
        """Return the positions on *node*, ascending."""
        return np.flatnonzero(self.of == node)

    def aggregators(self, node: int) -> Indices:
        """Return for each node the position on *node* that exchanges with it; of no meaning for *node* itself."""
        members = self.members(node)
        turns = (np.arange(self.count, dtype=np.intp) - node - 1) % self.count
        return members[turns % len(members)]

    def aggregator(self, node: int, other_node: int) -> int:
        """Return the position on *node* that exchanges with the *other_node* node."""
        return int(self.aggregators(node)[other_node])


class Crossing:
    """The boxes between one node and all others, in one direction, in the order in which they lie in messages.

    In the message between two nodes, boxes are ordered by sender, and then by their starts. So both nodes know the
    offset of each box. The messages of an aggregator follow one another in its buffer.

    Parameters
    ----------
    nodes: nodes of the group
    node: number of this node
    boxes_of: function from a position on this node to the boxes that it sends, or receives, in global indices
    sends: whether this node sends these boxes, or receives them
    itemsize: bytes of an element
    """

    def __init__(self, nodes: Nodes, node: int, boxes_of: Callable[[int], Boxes], sends: bool, itemsize: int) -> None:
        self.members = nodes.members(node)
        rank_rows = [_rows(nodes, node, int(position), boxes_of(int(position)), sends) for position in self.members]
        rows, self._row_of_box = _distinct(np.concatenate(rank_rows))
        self._peer = np.repeat(np.arange(len(rank_rows)), [len(rows) for rows in rank_rows])
        other_nodes, self.boxes = rows[:, 0], from_rows(rows[:, 2:], boxes_of(int(self.members[0])))
        sizes = self.boxes.sizes * itemsize
        self.lengths = np.zeros(nodes.count, dtype=np.intp)
        """The bytes of the message to, or from, each node."""
        np.add.at(self.lengths, other_nodes, sizes)
        aggregators = nodes.aggregators(node)
        self.begins, buffers = _laid_out(self.lengths, aggregators)
        """The offset of the message of each node in the buffer of its aggregator."""
        self.buffers = [buffers.get(int(position), 0) for position in self.members]
        """The bytes of the buffer of each rank of the node."""
        bytes_before = np.cumsum(self.lengths) - self.lengths
        self.offsets = np.cumsum(sizes) - sizes - bytes_before[other_nodes] + self.begins[other_nodes]
        """The offset of each box in the buffer that holds it."""
        self.holders = np.searchsorted(self.members, aggregators[other_nodes]).astype(np.intp)
        """The rank of the node, as an index into `members`, whose buffer holds each box."""

    def of(self, peer: int) -> Indices:
        """Return the indices of the boxes that rank *peer* of the node sends, or receives."""
        return np.unique(self._row_of_box[self._peer == peer])

    def holders_of(self, peer: int) -> list[int]:
        """Return the ranks of the node whose buffers hold boxes of rank *peer*."""
        return [int(holder) for holder in np.unique(self.holders[self.of(peer)])]

    def held_by(self, peer: int, holders: tuple[int, ...]) -> Indices:
        """Return the indices of the boxes of rank *peer* that are in the buffers of *holders*."""
        which = self.of(peer)
        return which[np.isin(self.holders[which], holders)]


def _rows(nodes: Nodes, node: int, position: int, boxes: Boxes, sends: bool) -> Indices:
    """Return a row for each box that crosses for the rank at *position*: other node, sender, starts and stops."""
    off_node = (nodes.of[boxes.peers] != node) & (boxes.sizes > 0)[boxes.which]
    peers, which = boxes.peers[off_node], boxes.which[off_node]
    senders = np.full_like(peers, position) if sends else peers
    return np.column_stack([nodes.of[peers], senders, as_rows(boxes, which)])


def _distinct(rows: Indices) -> tuple[Indices, Indices]:
    """Return the distinct rows in order, and for each row its index among them."""
    order = np.lexsort(rows.T[::-1])
    sorted_rows = rows[order]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (sorted_rows[1:] != sorted_rows[:-1]).any(axis=1)
    which = np.empty(len(rows), dtype=np.intp)
    which[order] = np.cumsum(is_new) - 1
    return sorted_rows[is_new], which


def _laid_out(lengths: Indices, aggregators: Indices) -> tuple[Indices, dict[int, int]]:
    """Return the offsets of messages of these *lengths* in the buffers of their *aggregators*, and the sizes."""
    begins, buffers = np.zeros_like(lengths), dict[int, int]()
    for node in np.flatnonzero(lengths).tolist():
        aggregator = int(aggregators[node])
        begins[node] = buffers.get(aggregator, 0)
        buffers[aggregator] = int(begins[node]) + -(-int(lengths[node]) // LINE) * LINE
    return begins, buffers


class BufferCopies:
    """The copies between the blocks of a node's ranks and the buffers of its aggregators, as one rank sees them.

    An aggregator has one buffer: first the messages that it sends to other nodes, then those that it receives.
    A local peer is named by its index among the positions on the node.

    Parameters
    ----------
    nodes: nodes of the group
    tensor: boxes that the group exchanges; this rank is at `tensor.position`
    """

    def __init__(self, nodes: Nodes, tensor: BoxExchange) -> None:
        node = int(nodes.of[tensor.position])
        self._tensor = tensor
        self._outgoing = Crossing(nodes, node, tensor.sends_of, True, tensor.itemsize)
        self._incoming = Crossing(nodes, node, tensor.receives_of, False, tensor.itemsize)
        self.members = self._outgoing.members
        self.me = int(np.searchsorted(self.members, tensor.position))
        self.sent_bytes = self._outgoing.buffers[self.me]
        """The bytes that this rank sends to other nodes, at the beginning of its buffer."""
        self.buffer_bytes = self.sent_bytes + self._incoming.buffers[self.me]
        """The size of the buffer of this rank, in bytes."""
        self.messages = self._messages(nodes, node)
        """Counts and offsets of the messages that this rank sends and receives in its buffer; None if it has none."""

    def _messages(self, nodes: Nodes, node: int) -> tuple[tuple[Indices, Indices], tuple[Indices, Indices]] | None:
        counts, offsets = np.zeros((2, 2, len(nodes.of)), dtype=np.intp)
        for other in np.flatnonzero(nodes.aggregators(node) == self._tensor.position).tolist():
            if other != node:
                peer = nodes.aggregator(other, node)
                counts[:, peer] = self._outgoing.lengths[other], self._incoming.lengths[other]
                offsets[:, peer] = self._outgoing.begins[other], self.sent_bytes + self._incoming.begins[other]
        return ((counts[0], offsets[0]), (counts[1], offsets[1])) if counts.any() else None

    def pack_peers(self) -> tuple[list[int], list[int]]:
        """Return the local peers whose buffers get boxes of this rank, and those with boxes for its own buffer."""
        return self._holders(self._outgoing)

    def unpack_peers(self) -> tuple[list[int], list[int]]:
        """Return the local peers whose buffers hold boxes for this rank, and those with boxes in its own buffer."""
        return self._holders(self._incoming)

    def _holders(self, crossing: Crossing) -> tuple[list[int], list[int]]:
        peers = [peer for peer in range(len(self.members)) if peer != self.me]
        own_holders = crossing.holders_of(self.me)
        return [peer for peer in peers if peer in own_holders], [
            peer for peer in peers if self.me in crossing.holders_of(peer)
        ]

    def out(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the block of this rank to the buffers of local *peers*."""
        tensor, crossing = self._tensor, self._outgoing
        which = crossing.held_by(self.me, peers)
        if not len(which):
            return None
        source = tensor.in_source(tensor.position, 0, crossing.boxes.subset(which))
        target, sizes = self._in_buffer(crossing, which, source.extents), [tensor.source_bytes(tensor.position)]
        return BoxCopies(sizes, crossing.buffers, tensor.itemsize, *source[:3], *target)

    def into(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the buffers of local *peers* to the new block of this rank."""
        tensor, crossing = self._tensor, self._incoming
        which = crossing.held_by(self.me, peers)
        if not len(which):
            return None
        target = tensor.in_target(tensor.position, 0, crossing.boxes.subset(which))
        source, sizes = self._in_buffer(crossing, which, target.extents), [tensor.target_bytes(tensor.position)]
        return BoxCopies(crossing.buffers, sizes, tensor.itemsize, *source[:3], *target)

    def _in_buffer(self, crossing: Crossing, which: Indices, extents: Indices) -> Strided:
        """Return where boxes of these *extents*, each contiguous, lie in the buffers of the node."""
        strides = np.ones_like(extents)
        strides[:, :-1] = np.cumprod(extents[:, :0:-1], axis=1)[:, ::-1]
        return Strided(crossing.holders[which], crossing.offsets[which], strides * self._tensor.itemsize, extents)
