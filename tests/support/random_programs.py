"""Random programs on tensors, each made from its seed alone, and compared with NumPy after every step.

A program is text: each step is a line of Python with calls of meshcomm, and a line that does the same to whole arrays.
The ranks of a world make the same program, from the same seed, while they run it. After a step each rank compares
its blocks of all tensors with slices of the whole arrays, bit for bit. If it fails, the text of the program is shown,
with the lines that the last one needs. `support.program_steps` has the steps.
"""

import gc
import re
import threading
import time
import traceback
from math import prod
from random import Random

import numpy as np

import meshcomm as mc
from support import reference
from support.random_cases import of_kinds, random_layout, shapes_of
from support.reference import random_bits, same_bits

STEPS = 30
NAMES = r"\b[abmprtvx]\d+\b"  # of meshes, requests, tensors and so on, as `Program.new` makes them
OPAQUE = ("V3", "S5", "M8[s]", ">i2")  # dtypes that are only moved
NUMBERS = ("f8", "f8", "i8", "i4", "f4", "c16", "u1", "?")


class Failed(Exception):
    """A step of a program went wrong; the text has the program."""


# -- what programs call -----------------------------------------------------------------------------------------------


def array(seed, shape, dtype):
    """Return an array of small integers, so that sums are exact in any order; of any bits for other dtypes."""
    if dtype in OPAQUE:
        return random_bits(shape, dtype, seed)
    return np.random.default_rng(seed).integers(0 if dtype in ("u1", "?") else -3, 4, shape).astype(dtype)


def fails(kind, call):
    """Check that *call* raises exactly the class *kind*."""
    try:
        result = call()
    except mc.MeshcommError as error:
        if type(error) is not kind:
            raise
        return
    raise AssertionError(f"{kind.__name__} was not raised, but returned {result!r}")


def waited(seed, requests):
    """Return the results of *requests*. Wait for them in an order that *seed* determines, and poll some before."""
    random, results = Random(seed), {}
    for request in random.sample(requests, len(requests)):
        while random.random() < 0.3 and not request.test():
            pass
        results[request] = request.wait()
    return [results[request] for request in requests]


def late(is_late):
    """Let other ranks wait for this one, if it *is_late*."""
    if is_late:
        time.sleep(0.002)


class Beside:
    """A thread that makes relayouts on a mesh of its own, over its own communicator. Collective over *comm*."""

    def __init__(self, comm, seed, rounds=15):
        from mpi4py import MPI  # which the simulated programs of this file do not need

        self._comm, self._error = comm.Dup(), None
        self._mesh = mc.create_mesh([("x", -1)], comm=self._comm)
        if "Open MPI" in MPI.Get_library_version():
            self._work(seed, 3)  # its ranks may wait for ever if two threads make communicators at the same time
        self._thread = threading.Thread(target=self._work, args=(seed, rounds))
        self._thread.start()

    def _work(self, seed, rounds):
        try:
            layouts = [mc.Layout(axes, self._mesh) for axes in ([("x",), ()], [(), ("x",)], [(), ()])]
            for number in range(rounds):
                numbers = array(seed + number, (7, 5), "f8")
                source, target = layouts[number % 3], layouts[(number + 1) % 3]
                moved = mc.relayout(mc.distribute(numbers, source), target)
                assert same_bits(moved.local, block(numbers, target, self._comm.rank)), "in a second thread"
        except Exception as error:
            self._error = error

    def end(self):
        """Wait for the thread, and raise what it has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._mesh.close()
        self._comm.Free()


# -- the model --------------------------------------------------------------------------------------------------------


def block(full_array, layout, rank):
    """Return the block of *rank* of *full_array*, by the definition of a layout; None outside of its mesh."""
    mesh = layout.mesh
    return reference.block_of(full_array, layout, mesh.ranks.index(rank)) if rank in mesh.ranks else None


class Program:
    """A program that makes and runs itself on one rank of a world.

    Parameters
    ----------
    seed: determines the program
    rank, size: number of this rank, and number of ranks of the world
    comm: the communicator of the world, or None for a simulated one
    """

    def __init__(self, seed, rank, size, comm=None):
        self.random, self.seed, self.rank, self.size, self.comm = Random(seed), seed, rank, size, comm
        self.lines = []
        self.names = {"mc": mc, "np": np, "gc": gc, "rank": rank, "comm": comm, "A": array, "L": layout_of}
        self.names.update(fails=fails, waited=waited, late=late, Beside=Beside, B=block)
        self.names.update(Cuts=mc.Cuts, Cyclic=mc.Cyclic)
        self.model = {"np": np, "A": array, "rank": rank, "reference": reference, "device_of": self.device_of}
        self.tensors, self.variables, self.meshes, self.closed, self.plans, self.threads = [], [], [], [], [], []
        self.requests = {}
        """By name of a request: the name of its source, and the name of its ``out=``, or None."""
        self.dtypes = [self.random.choice(NUMBERS), self.random.choice(NUMBERS), self.random.choice(OPAQUE)]
        self.shapes = [self.any_shape() for _ in range(3)]
        self._count = 0

    # -- the text -----------------------------------------------------------------------------------------------------

    def new(self, letter):
        """Return a new name."""
        self._count += 1
        return f"{letter}{self._count}"

    def do(self, line, model=""):
        """Run a step on this rank, and on whole arrays, and compare all blocks."""
        self.lines.append(line)
        exec(line, self.names)
        exec(model, self.model)
        self.compare()

    def compare(self):
        for name, expected in list(self.model.items()):
            if not re.fullmatch(NAMES, name) or name[0] == "r":
                continue
            value = self.names[name]
            if isinstance(value, mc.Variable | mc.DTensor):
                assert (value.shape, value.dtype) == (expected.shape, expected.dtype), (
                    f"{name} is {value!r}, not {expected!r}"
                )
                value, expected = value.local, block(expected, value.layout, self.rank)
            else:  # a result on each rank
                del self.model[name], self.names[name]
            if expected is None or value is None:
                assert value is expected, f"{name} is {value!r}, not {expected!r}"
            else:
                assert same_bits(value, expected), f"{name} on this rank is {value!r}, not {expected!r}"

    def report(self, failure):
        return (
            f"rank {self.rank} of {self.size}: seed {self.seed}, step {len(self.lines)}; "
            f"make soak SEED={self.seed} repeats it\n{failure}\n"
            + "the lines that the last one needs:\n    "
            + "\n    ".join(needed(self.lines))
            + "\nthe program:\n    "
            + "\n    ".join(self.lines)
        )

    def forget(self, name):
        """Delete a name here, in the model and in the lists."""
        self.model.pop(name, None)
        for names in (self.tensors, self.variables):
            if name in names:
                names.remove(name)

    # -- what steps choose --------------------------------------------------------------------------------------------

    def any_shape(self):
        if self.random.random() < 0.05:
            return self.random.choice([(260, 301), (70_001,)])  # blocks that are not always packed
        lengths = [1, 2, 3, 4, 5, 6, 7, 8, 12] + [0, 40] * (self.random.random() < 0.1)
        return tuple(self.random.choice(lengths) for _ in range(self.random.choice([0, 1, 1, 2, 2, 2, 2, 3, 3])))

    def any_mesh(self, whole=False):
        """Return the name of an open mesh, often a new one if there are few. If *whole*, all ranks are in it."""
        candidates = [name for name in self.meshes if not whole or self.names[name].size == self.size]
        if candidates and self.random.random() > 0.3 / len(candidates):
            return self.random.choice(candidates)
        count = self.size if whole or self.random.random() < 0.6 else self.random.randint(1, self.size)
        devices = self.random.sample(range(self.size), count)
        if self.random.random() < 0.5:
            devices.sort()
        dims = list(zip("xyz", self.random.choice(shapes_of(count)), strict=False))
        name = self.new("m")
        self.do(f"{name} = mc.create_mesh({dims}, devices={devices}, comm=comm)")
        self.meshes.append(name)
        return name

    def any_layout(self, shape, mesh=None, match=False):
        """Return the text of a layout of an array of *shape*, of any kind."""
        mesh, ndim = mesh or self.any_mesh(), len(shape)
        layout = of_kinds(self.random, random_layout(self.random, self.names[mesh], ndim), shape)
        specs = ["+".join(names) if isinstance(names, tuple) else names for names in layout.axes]
        if match and ndim and self.random.random() < 0.1:
            specs[self.random.randrange(ndim)] = mc.MATCH
        return f"L({mesh}, {', '.join(map(repr, specs))})" if specs else f"L({mesh})"

    def any_tensor(self, fits=lambda tensor: True):
        """Return the name of an open tensor that *fits*, or None if there is none."""
        candidates = [name for name in self.tensors if fits(self.names[name])]
        return self.random.choice(candidates) if candidates else None

    def is_read(self, name):
        """Return whether a request may still read the block of this tensor."""
        return any(source == name for source, _ in self.requests.values())

    def mesh_of(self, name):
        return next(mesh for mesh in self.meshes if self.names[mesh] is self.names[name].mesh)

    def device_of(self, rank, mesh):
        """Return the device of *rank* in a mesh, by its name."""
        ranks = self.names[mesh].ranks
        return ranks.index(rank) if rank in ranks else None

    def added(self, name):
        self.tensors.append(name)
        return name


def layout_of(mesh, *specs):
    """Return the layout of these specs: mesh dimensions joined by ``+``, "" for none, MATCH, `Cuts` or `Cyclic`."""

    def parsed(spec):
        return spec if not isinstance(spec, str) or spec == mc.MATCH else tuple(filter(None, spec.split("+")))

    return mc.Layout(list(map(parsed, specs)), mesh)


def needed(lines):
    """Return the last line, and the lines before it that write to names which it needs, directly or indirectly."""
    needed_names, needed_lines = set(re.findall(NAMES, lines[-1])), [lines[-1]]
    for line in reversed(lines[:-1]):
        target, equals, _ = line.partition(" = ")
        written_names = set(re.findall(NAMES, target if equals else line)) | set(
            re.findall(NAMES, line.partition("out=")[2])
        )
        if written_names & needed_names:
            needed_names |= set(re.findall(NAMES, line))
            needed_lines.append(line)
    return needed_lines[::-1]


def run_program(seed, rank, size, comm=None, steps=STEPS):
    """Run the program of *seed* on this rank, and return its number of steps. Collective over the world."""
    from support.program_steps import end_program, random_step

    program = Program(seed, rank, size, comm)
    try:
        while len(program.lines) < steps:
            random_step(program)
        end_program(program)
    except Exception:
        raise Failed(program.report(traceback.format_exc())) from None
    return len(program.lines)


def bytes_of(tensor):
    return prod(tensor.shape) * tensor.dtype.itemsize
