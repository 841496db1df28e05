"""Split images over the logical devices of a replica: mpiexec -n 8 python mpi_examples/logical_devices.py

This is the example of experimental_split_to_logical_devices: 8 ranks form one replica of 8 logical devices, and images
are cut into 2 * 4 blocks. With 1, 2 or 4 ranks the replica is smaller. With another number, some ranks are in no
replica. Then the same ranks form two replicas, each with images of its own.
"""

import numpy as np

import meshcomm as mc
from meshcomm.tensorflow.assignment import DeviceAssignment
from meshcomm.tensorflow.strategy import PerReplica, Strategy
from meshcomm.tensorflow.topology import Topology

# For each number of logical devices: how the images are cut, and the box of ranks in the topology.
PARTITIONS = {1: [1, 1, 1, 1], 2: [1, 1, 2, 1], 4: [1, 2, 2, 1], 8: [1, 2, 4, 1]}
COMPUTATIONS = {1: [1, 1, 1, 1], 2: [1, 1, 1, 2], 4: [1, 1, 2, 2], 8: [1, 2, 2, 2]}


def strategy_of(cores, replicas):
    """Return a strategy with *replicas* of *cores* logical devices each, on the ranks of the job."""
    ranks = mc.create_mesh().size
    box = COMPUTATIONS[cores]
    if ranks % cores == 0:
        topology = Topology.from_comm(mesh_shape=[ranks // cores, *box[1:]])
    else:
        topology, box = Topology.from_comm(mesh_shape=[ranks, 1, 1, 1]), [cores, 1, 1, 1]
    return Strategy(DeviceAssignment.build(topology, box, num_replicas=replicas))


def model(images):
    """Return the contrast of each image: the mean of its brightest channel per pixel, minus the mean of the image.

    Each block finds the brightest channel of its pixels. The mean needs whole images, so a relayout moves them.
    """
    brightest = mc.from_local(images.local.max(axis=3, keepdims=True), images.layout, (*images.shape[:3], 1))
    names = tuple(images.mesh.dim_names)
    whole_images = mc.Layout([names, mc.UNSHARDED, mc.UNSHARDED, mc.UNSHARDED], images.mesh)
    pixels, peaks = mc.relayout(images, whole_images), mc.relayout(brightest, whole_images)
    contrast = peaks.local.mean(axis=(1, 2, 3)) - pixels.local.mean(axis=(1, 2, 3))
    return mc.from_local(contrast, mc.Layout([names], images.mesh), images.shape[:1]).to_numpy()


def check_split(strategy, inputs, images):
    """Check that logical device k has the block of *inputs* at ``unravel_index(k, partition)``."""
    partition = images.mesh.shape()
    at = np.unravel_index(strategy.logical_device_id, partition)
    lengths = [n // count for n, count in zip(inputs.shape, partition, strict=True)]
    block = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, lengths, strict=True))
    assert np.array_equal(images.local, inputs[block])


def report(replica, ranks, images, contrast):
    """Print which block each logical device had, as one text."""
    lines = [f"replica {replica}: contrast of the first image {contrast[0]:.4f}"]
    for device, rank in enumerate(ranks):
        _, width, height, _ = images.layout.block_slices(images.shape, device)
        pixels = f"width {width.start}:{width.stop}, height {height.start}:{height.stop}"
        lines.append(f"  logical device {device} (rank {rank}): {pixels}")
    print("\n".join(lines) + "\n", end="", flush=True)


def run(strategy, batches):
    """Run the model on every replica, each with its own batch, and check the result."""
    partition = PARTITIONS[strategy.num_logical_devices]

    def step_fn(inputs):
        images = strategy.experimental_split_to_logical_devices(inputs, partition)
        check_split(strategy, inputs, images)
        return images, model(images)

    result = strategy.run(step_fn, args=(PerReplica(batches),))
    if result is None:
        return  # this rank is in no replica
    images, contrast = result
    replica = strategy.replica_id
    inputs = batches[replica]
    assert np.allclose(contrast, inputs.max(axis=3).mean(axis=(1, 2)) - inputs.mean(axis=(1, 2, 3)))
    if strategy.logical_device_id == 0:
        report(replica, strategy.device_assignment.ranks[replica], images, contrast)
    strategy.close()


ranks = mc.create_mesh().size
most = max(cores for cores in PARTITIONS if cores <= ranks)
batches = [np.random.default_rng(seed).random((16, 4, 8, 3)) for seed in (0, 1)]

run(strategy_of(most, replicas=1), batches[:1])
if ranks > 1:
    run(strategy_of(most // 2, replicas=2), batches)
