"""A save over an old one, in which one rank is killed as it writes for the n-th time.

mpiexec -n 3 python killed_save.py PATH RANK N
"""

import os
import signal
import sys
from itertools import count

import numpy as np

import meshcomm as mc

path, victim, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layout = mc.Layout(["x"], mc.create_mesh([("x", 3)]))


def save(number: int) -> None:
    """Save three arrays that hold the *number*."""
    mc.save(path, {name: mc.distribute(np.full(30_000, number), layout) for name in "uvw"})


save(1)
if layout.mesh.rank == victim:
    numbers, real = count(1), os.pwrite

    def killed(file: int, data: memoryview, offset: int) -> int:
        """Write as `os.pwrite` does, but die half way in the last write."""
        if next(numbers) == last:
            real(file, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, data, offset)

    os.pwrite = killed
save(2)
