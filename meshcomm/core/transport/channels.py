"""Exchanges between the same blocks, again and again: on a node they start without waiting, by a `Channel`.

A channel is opened once for some blocks. An all_gather says where the blocks of each rank are in its pool, so that all
know alike which ranks copy and which exchange messages.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._types import Bytes, Indices
from meshcomm.core.memory._channel import Channel, give_back, reserve
from meshcomm.core.memory._pool import Pool
from meshcomm.core.memory._rendezvous import Rendezvous
from meshcomm.core.memory.copies import as_byte_boxes
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.exchange import BoxExchange


class ChannelOffer(TypedDict):
    """Where a rank has its blocks and its lines in its pool."""

    blocks: list[int]
    lines: list[int]
    slots: dict[str, int]
    """For each peer, by its position."""
    clock: int
    """That of the pool."""


class OpenedChannel(NamedTuple):
    """A channel for the ranks of a group, and who exchanges messages instead.

    Parameters
    ----------
    channel: the channel; None on a rank that cannot copy
    others: positions of the ranks with which this rank exchanges messages
    copies, sends: whether any rank of the group copies, and whether any exchanges messages; the same on all ranks
    """

    channel: Channel | None
    others: Indices
    copies: bool
    sends: bool


def open_channel(group: Group, tensors: Sequence[BoxExchange], blocks: Sequence[Bytes]) -> OpenedChannel:
    """Return a channel for the exchange of *tensors* from *blocks* to the same blocks. Collective over the group."""
    communicator, everyone = group.communicator(), np.arange(len(group.members), dtype=np.intp)
    nodes, rendezvous, position = group.nodes, group.rendezvous, tensors[0].position
    if nodes is None:  # on all ranks
        return OpenedChannel(None, everyone, copies=False, sends=True)
    peers = [] if rendezvous is None else _peers(tensors, rendezvous.members, position)
    offer = None if rendezvous is None else _offer(_pool(rendezvous), blocks, peers)
    offers = communicator.allgather_json(offer)
    unable = {node for node, other in zip(nodes, offers, strict=True) if other is None}
    copies, sends = not unable.issuperset(nodes), bool(unable) or len(set(nodes)) > 1
    if rendezvous is None or nodes[position] in unable:
        if rendezvous is not None and offer is not None:
            give_back(_pool(rendezvous), offer["lines"])
        return OpenedChannel(None, everyone, copies, sends)
    shared = {rank: other for rank, other in enumerate(offers) if other is not None}
    channel = _channel(rendezvous, tensors, peers, shared)
    return OpenedChannel(channel, np.flatnonzero(np.array(nodes) != nodes[position]), copies, sends)


def _peers(tensors: Sequence[BoxExchange], members: Sequence[int], position: int) -> list[int]:
    """Return the positions of the local peers with which this rank has bytes to exchange."""
    positions: set[int] = set()
    for tensor in tensors:
        for boxes in (tensor.sends, tensor.receives):
            nonempty = np.flatnonzero(np.all(boxes.stops > boxes.starts, axis=1))  # not the empty ones
            positions.update(boxes.peers[np.isin(boxes.which, nonempty)].tolist())
    return sorted((positions & set(members)) - {position})


def _pool(rendezvous: Rendezvous) -> Pool:
    """Return the pool of this rank."""
    pool = rendezvous.memories[rendezvous.position]
    assert isinstance(pool, Pool)
    return pool


def _offer(pool: Pool, blocks: Sequence[Bytes], peers: Sequence[int]) -> ChannelOffer | None:
    """Return where the blocks of this rank are, and its lines, which it reserves; None if it cannot share them."""
    at = [pool.locate(block) if len(block) else 0 for block in blocks]
    reserved = None if min(at) < 0 else reserve(pool, len(peers))
    if reserved is None:
        return None
    lines, slots = reserved
    return ChannelOffer(blocks=at, lines=lines, slots=dict(zip(map(str, peers), slots, strict=True)), clock=pool.clock)


def _channel(
    rendezvous: Rendezvous, tensors: Sequence[BoxExchange], peers: Sequence[int], offers: dict[int, ChannelOffer]
) -> Channel:
    position, members, described = tensors[0].position, rendezvous.members, []
    for peer in peers:
        peer_offer = offers[peer]
        memory = rendezvous.memories[members.index(peer)]
        described.append(
            (
                memory,
                peer_offer["lines"][0],
                peer_offer["slots"][str(position)],
                peer_offer["blocks"],
                _copies(tensors, peer, position),
                _copies(tensors, position, peer),
            )
        )
    own_offer, names = offers[position], [rendezvous.names[members.index(member)] for member in (position, *peers)]
    epoch = max(peer_offer["clock"] for peer_offer in offers.values())
    return Channel(_pool(rendezvous), own_offer["lines"], own_offer["blocks"], described, epoch, names)


def _copies(tensors: Sequence[BoxExchange], sender: int, receiver: int) -> BoxCopies | None:
    """Return the copies from the blocks of one rank to those of another; this rank is one of both."""
    froms, tos = [], []
    for region, tensor in enumerate(tensors):
        exchanged = tensor.sends if sender == tensor.position else tensor.receives
        boxes = exchanged.subset(exchanged.of(receiver if sender == tensor.position else sender))
        froms.append(tensor.in_source(sender, region, boxes))
        tos.append(tensor.in_target(receiver, region, boxes))
    itemsizes = [tensor.itemsize for tensor in tensors]
    (source, itemsize), (target, _) = as_byte_boxes(froms, itemsizes), as_byte_boxes(tos, itemsizes)
    if not source.extents.all(axis=1).any():
        return None
    sizes = [tensor.source_bytes(sender) for tensor in tensors], [tensor.target_bytes(receiver) for tensor in tensors]
    return BoxCopies(*sizes, itemsize, *source[:3], *target)
