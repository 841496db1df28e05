"""One program of npbench in one library, for `programs.py`: NumPy, JAX, or meshcomm on the ranks of a job.

Usage: ``python programs_one.py LIBRARY NPBENCH NAME SIZE OUTPUT``. Rank 0 writes the values, and the seconds of each
call, into the file OUTPUT; or the error that the program raises. With ``--profile SECONDS`` rank 0 prints instead,
after this many seconds, what the program calls and where the time goes, and ends the job.
"""

import argparse
import copy
import cProfile
import hashlib
import json
import os
import pstats
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rounds import jax_with

SHOWN = 25
"""Lines of a profile."""


class NumPy:
    """The library that all others are compared with, in one process."""

    name, rank = "numpy", 0

    def argument(self, value: Any) -> Any:
        """Return a copy of an argument as the program gets it."""
        return copy.deepcopy(value)

    def ended(self, result: Any) -> None:
        """Return when the result is there, on all ranks."""

    def whole(self, value: Any) -> Any:
        """Return a value as NumPy's array."""
        return np.asarray(value)

    def same(self, values: list[Any]) -> bool:
        """Return whether all ranks have the same values."""
        return True

    def agreed(self, number: int) -> int:
        """Return the number of rank 0."""
        return number


class Jax(NumPy):
    """The program's other version, which JAX compiles; XLA may use all cores."""

    name = "jax"

    def __init__(self) -> None:
        self.jax = jax_with(1)

    def argument(self, value: Any) -> Any:
        return self.jax.numpy.array(value) if isinstance(value, np.ndarray) else value

    def ended(self, result: Any) -> None:
        self.jax.block_until_ready(result)


class Ours(NumPy):
    """Tensors, each cut along its longest axis over all ranks, in NumPy's version of the program."""

    def __init__(self) -> None:
        from mpi4py import MPI

        import meshcomm

        self.meshcomm, self.comm = meshcomm, MPI.COMM_WORLD.Dup()
        self.mesh, self.rank = meshcomm.create_mesh([("x", self.comm.size)]), self.comm.rank

    def argument(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.ndim:
            return value
        specs = [self.meshcomm.UNSHARDED] * value.ndim
        specs[int(np.argmax(value.shape))] = "x"
        return self.meshcomm.distribute(value, self.meshcomm.Layout(specs, self.mesh))

    def ended(self, result: Any) -> None:
        self.comm.Barrier()

    def whole(self, value: Any) -> Any:
        return value.to_numpy() if isinstance(value, self.meshcomm.DTensor) else np.asarray(value)

    def same(self, values: list[Any]) -> bool:
        digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).digest()
        return len(set(self.comm.allgather(digest))) == 1

    def agreed(self, number: int) -> int:
        return int(self.comm.bcast(number))


LIBRARIES = {"NumPy": NumPy, "JAX": Jax, "meshcomm": Ours}


class Program:
    """A program of npbench: its function, its arguments, and which of these it changes."""

    def __init__(self, folder: Path, name: str, size: str, library: str) -> None:
        sys.path.insert(0, str(folder))
        info = json.loads((folder / "bench_info" / f"{name}.json").read_text(encoding="utf-8"))["benchmark"]
        module = f"npbench.benchmarks.{info['relative_path'].replace('/', '.')}.{info['module_name']}"
        values = dict(info["parameters"][size])
        if made := info.get("init"):
            found = getattr(import_module(module), made["func_name"])(*(values[name] for name in made["input_args"]))
            names = made["output_args"]
            values.update(zip(names, found if len(names) > 1 else [found], strict=True))
        self.function = getattr(import_module(f"{module}_{library}"), info["func_name"])
        self.arguments = {name: values[name] for name in info["input_args"]}
        self.changed = [name for name in info["output_args"] if name in self.arguments]

    def call(self, library: NumPy) -> tuple[list[Any], float]:
        """Return what the program returns and changes, and the seconds it takes."""
        given = {name: library.argument(value) for name, value in self.arguments.items()}
        library.ended(list(given.values()))
        begin = time.perf_counter()
        returned = self.function(*given.values())
        library.ended(returned)
        return [*leaves([returned, *(given[name] for name in self.changed)])], time.perf_counter() - begin


def nudged(value: Any) -> Any:
    """Return an argument whose numbers are one rounding larger: a program that makes much of that is chaotic."""
    inexact = isinstance(value, np.ndarray) and value.dtype.kind in "fc"
    return value * (1 + np.finfo(value.dtype).eps) if inexact else value


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers in lists and tuples."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    elif value is not None:
        yield value


def measured(library: NumPy, program: Program, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the values of the first call, and the seconds of all, in about half of the *seconds* that there are."""
    try:
        found, first = program.call(library)
        values = [library.whole(value) for value in found]
    except Exception as problem:
        lines = [frame.line for frame in traceback.extract_tb(problem.__traceback__) if "npbench" in frame.filename]
        said = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        return {"error": f"{said}, in `{lines[-1]}`" if lines else said}
    if not library.same(values):
        return {"error": "the ranks have different values"}
    again = int(min(rounds, seconds / 2 // first))
    times = [first, *(program.call(library)[1] for _ in range(library.agreed(again)))]
    return {"seconds": times, **{f"value {number}": value for number, value in enumerate(values)}}


def profiled(library: NumPy, program: Program, seconds: float) -> None:
    """Run the program, and after some *seconds* print the profile of rank 0 and end the job."""
    profile = cProfile.Profile()

    def end(*_: object) -> None:
        profile.disable()
        show(pstats.Stats(profile))
        sys.stdout.flush()
        os._exit(1)  # the launcher ends the other ranks

    if library.rank == 0:
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        profile.enable()
    program.call(library)
    if library.rank == 0:
        end()


def show(found: pstats.Stats) -> None:
    """Print what the program itself calls, and the functions that take the time."""
    print("   calls  µs each  called by the program")
    calls: dict[str, tuple[int, float]] = {}
    for (path, _, function), (*_, callers) in found.stats.items():  # type: ignore[attr-defined]
        name = f"{Path(path).stem}.{function}"  # mixins.func is an operator
        for (caller, _, _), (count, _, _, total) in callers.items():
            if "npbench" in caller:
                before = calls.get(name, (0, 0.0))
                calls[name] = (before[0] + count, before[1] + total)
    for name, (count, total) in sorted(calls.items(), key=lambda item: -item[1][1])[:SHOWN]:
        print(f"{count:8} {total / count * 1e6:8.1f}  {name}")
    found.sort_stats("tottime").print_stats(SHOWN)


def main() -> None:
    """Run one program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("size")
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it may take")
    parser.add_argument("--profile", type=float, metavar="SECONDS")
    parser.add_argument("--nudged", action="store_true", help="change arguments by rounding")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    library = LIBRARIES[options.library]()
    program = Program(options.folder, options.name, options.size, library.name)
    if options.nudged:
        program.arguments = {name: nudged(value) for name, value in program.arguments.items()}
    if options.profile:
        profiled(library, program, options.profile)
        return
    found = measured(library, program, options.rounds, options.seconds)
    if library.rank == 0:
        np.savez(options.output, **found)


if __name__ == "__main__":
    main()
