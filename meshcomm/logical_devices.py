"""Logical devices: replicas of a computation, and tensors split over the ranks of a replica."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public
from meshcomm.tensorflow.assignment import DeviceAssignment
from meshcomm.tensorflow.strategy import PerReplica, Strategy, check_partition
from meshcomm.tensorflow.topology import DeviceOrderMode, Topology

__all__ = ["DeviceAssignment", "DeviceOrderMode", "PerReplica", "Strategy", "Topology", "check_partition"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
