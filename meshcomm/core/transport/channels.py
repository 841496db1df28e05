"""Exchanges between the same blocks, again and again: on a node they start without waiting, by a `Channel`.

A channel is opened once for some blocks. An all_gather tells all ranks where the blocks of each rank are in its pool,
so that all know which ranks copy and which exchange messages.
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
    """The blocks and lines of a rank, as offsets in its pool."""

    blocks: list[int]
    lines: list[int]
    slots: dict[str, int]
    """The slot of each peer, by its position."""
    clock: int
    """The clock of the pool."""


class OpenedChannel(NamedTuple):
    """A channel for the ranks of a group, and the ranks that exchange messages instead.

    Parameters
    ----------
    channel: the channel; None on a rank that cannot copy
    message_peers: positions of the ranks with which this rank exchanges messages
    any_copies, any_messages: whether any rank of the group copies, and whether any exchanges messages; the same on all
        ranks
    """

    channel: Channel | None
    message_peers: Indices
    any_copies: bool
    any_messages: bool


def open_channel(group: Group, tensors: Sequence[BoxExchange], blocks: Sequence[Bytes]) -> OpenedChannel:
    """Return a channel for the exchange of *tensors* from *blocks* to the same blocks. Collective over the group."""
    communicator, all_positions = group.communicator(), np.arange(len(group.members), dtype=np.intp)
    nodes, rendezvous, position = group.nodes, group.rendezvous, tensors[0].position
    if nodes is None:  # on all ranks
        return OpenedChannel(None, all_positions, any_copies=False, any_messages=True)
    peers = [] if rendezvous is None else _peers(tensors, rendezvous.members, position)
    offer = None if rendezvous is None else _offer(_pool(rendezvous), blocks, peers)
    offers = communicator.allgather_json(offer)
    unable_nodes = {node for node, peer_offer in zip(nodes, offers, strict=True) if peer_offer is None}
    any_copies, any_messages = not unable_nodes.issuperset(nodes), bool(unable_nodes) or len(set(nodes)) > 1
    if rendezvous is None or nodes[position] in unable_nodes:
        if rendezvous is not None and offer is not None:
            give_back(_pool(rendezvous), offer["lines"])
        return OpenedChannel(None, all_positions, any_copies, any_messages)
    offers_by_position = {rank: peer_offer for rank, peer_offer in enumerate(offers) if peer_offer is not None}
    channel = _channel(rendezvous, tensors, peers, offers_by_position)
    return OpenedChannel(channel, np.flatnonzero(np.array(nodes) != nodes[position]), any_copies, any_messages)


def _peers(tensors: Sequence[BoxExchange], members: Sequence[int], position: int) -> list[int]:
    """Return the positions of the local peers with which this rank has bytes to exchange."""
    positions: set[int] = set()
    for tensor in tensors:
        for boxes in (tensor.sends, tensor.receives):
            nonempty = np.flatnonzero(np.all(boxes.stops > boxes.starts, axis=1))
            positions.update(boxes.peers[np.isin(boxes.which, nonempty)].tolist())
    return sorted((positions & set(members)) - {position})


def _pool(rendezvous: Rendezvous) -> Pool:
    """Return the pool of this rank."""
    pool = rendezvous.memories[rendezvous.position]
    assert isinstance(pool, Pool)
    return pool


def _offer(pool: Pool, blocks: Sequence[Bytes], peers: Sequence[int]) -> ChannelOffer | None:
    """Return the offsets of the blocks of this rank, and lines reserved for it; None if it cannot share them."""
    offsets = [pool.locate(block) if len(block) else 0 for block in blocks]
    lines_and_slots = None if min(offsets) < 0 else reserve(pool, len(peers))
    if lines_and_slots is None:
        return None
    lines, slots = lines_and_slots
    return ChannelOffer(
        blocks=offsets, lines=lines, slots=dict(zip(map(str, peers), slots, strict=True)), clock=pool.clock
    )


def _channel(
    rendezvous: Rendezvous, tensors: Sequence[BoxExchange], peers: Sequence[int], offers: dict[int, ChannelOffer]
) -> Channel:
    position, members, peer_descriptions = tensors[0].position, rendezvous.members, []
    for peer in peers:
        peer_offer = offers[peer]
        memory = rendezvous.memories[members.index(peer)]
        peer_descriptions.append(
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
    return Channel(_pool(rendezvous), own_offer["lines"], own_offer["blocks"], peer_descriptions, epoch, names)


def _copies(tensors: Sequence[BoxExchange], sender: int, receiver: int) -> BoxCopies | None:
    """Return the copies from blocks of *sender* to blocks of *receiver*; one of them is this rank."""
    sources, targets = [], []
    for region, tensor in enumerate(tensors):
        tensor_boxes = tensor.sends if sender == tensor.position else tensor.receives
        boxes = tensor_boxes.subset(tensor_boxes.of(receiver if sender == tensor.position else sender))
        sources.append(tensor.in_source(sender, region, boxes))
        targets.append(tensor.in_target(receiver, region, boxes))
    itemsizes = [tensor.itemsize for tensor in tensors]
    (source, itemsize), (target, _) = as_byte_boxes(sources, itemsizes), as_byte_boxes(targets, itemsizes)
    if not source.extents.all(axis=1).any():
        return None
    sizes = [tensor.source_bytes(sender) for tensor in tensors], [tensor.target_bytes(receiver) for tensor in tensors]
    return BoxCopies(*sizes, itemsize, *source[:3], *target)
