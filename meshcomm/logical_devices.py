"""Logical devices: replicas of a computation, and tensors split over the ranks of a replica."""

from meshcomm.training.assignment import DeviceAssignment
from meshcomm.training.strategy import PerReplica, Strategy, check_partition
from meshcomm.training.topology import DeviceOrderMode, Topology

__all__ = ["DeviceAssignment", "DeviceOrderMode", "PerReplica", "Strategy", "Topology", "check_partition"]


def __dir__() -> list[str]:
    return sorted(__all__)
