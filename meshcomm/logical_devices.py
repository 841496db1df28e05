"""Logical devices: replicas of a computation, and tensors split over the ranks of a replica."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.tensorflow.assignment import DeviceAssignment as DeviceAssignment
from meshcomm.tensorflow.strategy import PerReplica as PerReplica
from meshcomm.tensorflow.strategy import Strategy as Strategy
from meshcomm.tensorflow.strategy import check_partition as check_partition
from meshcomm.tensorflow.topology import DeviceOrderMode as DeviceOrderMode
from meshcomm.tensorflow.topology import Topology as Topology

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
