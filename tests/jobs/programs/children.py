"""Ranks that start programs of Python: each child is a world of its own, whatever its parent has from the launcher."""

import multiprocessing
import os
import subprocess
import sys

import meshcomm as mc

CHILD = "import children; print(children.total(3))"


def total(n):
    """Return a sum that a world of one rank computes."""
    mesh = mc.create_mesh([("x", -1)])
    assert mesh.size == 1
    return int(mc.ones(n, int, mc.Layout(["x"], mesh)).sum().to_numpy())


def main(case):
    mesh = mc.create_mesh([("x", -1)])
    if case == "subprocess":
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, os.path.dirname(__file__)])}
        run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment)
        assert (run.stdout, run.returncode) == ("3\n", 0), run
    else:
        with multiprocessing.get_context(case).Pool(2) as pool:
            assert pool.map(total, [1, 2, 3]) == [1, 2, 3]
    mc.barrier(mesh)
    print("as expected")


if __name__ == "__main__":
    main(sys.argv[1])
