"""The result of mpi_examples/restart.py, computed by NumPy alone."""

import hashlib

import numpy as np


def digest_at_the_end():
    """Return the digest that the example prints for its plate after all 400 steps."""
    plate = np.zeros((200, 300))
    plate[0] = 100.0
    for _ in range(400):
        interior = plate[1:-1, 1:-1]
        neighbour_sum = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
        plate[1:-1, 1:-1] = interior + 0.2 * (neighbour_sum - 4 * interior)
    return hashlib.blake2b(plate.tobytes(), digest_size=8).hexdigest()
