"""``run --numpy``: run an unchanged script of NumPy on all ranks.

``import numpy`` in the script, and in modules beside it, gives `meshcomm.numpy`; libraries get NumPy. The output of
rank 0 is shown. That of another rank is shown only if this rank fails and rank 0 does not. NumPy's warnings on any
rank are shown once.
"""

import atexit
import builtins
import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from io import TextIOBase, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType, ModuleType
from typing import TextIO

import numpy as np

from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._tracing import Value
from meshcomm.core.arrays._waiting import compute_waiting
from meshcomm.core.arrays.conditions import agree_on_conditions
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_alone, set_scripted
from meshcomm.core.failures import abort
from meshcomm.core.memory.heap import keep_freed
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.storage.files import at_files
from meshcomm.tools.cli.script_warnings import WarningPrinter

_NAMESPACE, _SUBMODULES = "meshcomm.numpy", ("fft", "linalg", "random", "testing")
_PACKAGES = frozenset(("site-packages", "dist-packages"))
_OURS = Path(__file__).resolve().parents[2]


class NumPyScript:
    """A script of NumPy, and the folder of its modules."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())
        self._import, self._open = builtins.__import__, open
        self._is_own_file_cached = cache(self._is_own_file)
        self._has_warned = False

    def begin(self) -> None:
        """Let the script import `meshcomm.numpy`, and hold back the output of all ranks but rank 0."""
        self.begin_imports()
        rank, size = abort.comm_world()
        if size > 1:
            sys.stdin = SharedInput(sys.stdin)
        stderr = sys.stderr
        if rank:
            hold_back()
        if size > 1:
            warnings.showwarning = WarningPrinter(rank, stderr).show
            agree_on_conditions(True)  # after that: it notes what shows warnings usually
        if rank == 1:
            builtins.open = self._open_watched
        atexit.register(compute_waiting)  # for the warnings of what the script has made and not used

    def begin_imports(self) -> None:
        """Let the script import `meshcomm.numpy`. Collective over COMM_WORLD."""
        _, size = abort.comm_world()
        set_scripted(True, alone=size == 1)
        keep_freed()
        DTensor.__module__, DTensor.__name__, DTensor.__qualname__ = (
            "numpy",
            "ndarray",
            "ndarray",
        )  # for print(type(x))
        builtins.__import__ = self._import_watched
        if size > 1:
            _seed_alike()

    def _is_own_file(self, file: str) -> bool:
        path = Path(file).resolve()
        is_library = path.is_relative_to(_OURS) or any(parent.name in _PACKAGES for parent in path.parents)
        return path.is_relative_to(self._folder) and not is_library

    def _is_of_script(self, names: Mapping[str, object] | None) -> bool:
        """Return whether the module with these global *names* is the script, or beside it."""
        if names is None:
            return False
        file = names.get("__file__")
        return self._is_own_file_cached(file) if isinstance(file, str) else names.get("__name__") == "__main__"

    def _import_watched(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        package, _, submodule = name.partition(".")
        if package != "numpy" or level or not self._is_of_script(globals):
            return self._import(name, globals, locals, fromlist or (), level)
        namespace = import_module(_NAMESPACE)
        if submodule in _SUBMODULES and (submodule == "random" or not is_alone()):
            our_module = import_module(f"{_NAMESPACE}.{submodule}")
            return our_module if fromlist else namespace
        module = self._import(name, globals, locals, fromlist or (), 0)
        return module if submodule and fromlist else namespace

    def _open_watched(self, file: Value, mode: str = "r", *args: Value, **kwargs: Value) -> Value:
        """Open a file, as `open` does. Say once that the script opens one for writing, maybe on all ranks.

        An audit hook would see this, too, but each ``sys._getframe`` calls it, which takes 2 µs.
        """
        result = self._open(file, mode, *args, **kwargs)
        frame: FrameType | None = sys._getframe(1)
        if self._has_warned or not set("wax+") & {*mode} or file == os.devnull or frame is None:
            return result
        if self._is_of_script(frame.f_globals):
            self._has_warned = True
            abort.say(
                f"rank 1 opens {file!r} for writing, at line {frame.f_lineno} of {frame.f_code.co_filename}. If all "
                "ranks open it, let one rank write it: import meshcomm as mc, and if mc.is_root(): ..."
            )
        return result


class SharedInput(TextIOBase):
    """Standard input of rank 0, which all ranks read together: launchers give other ranks no input."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1) -> str:  # type: ignore[override]  # which takes None, too
        """Return the next line. Collective."""
        return self._read_for_all(lambda: self._lines.readline(size))

    def read(self, size: int | None = -1) -> str:
        """Return *size* characters, or by default all that follow. Collective."""
        return self._read_for_all(lambda: self._lines.read(-1 if size is None else size))

    def _read_for_all(self, read: Callable[[], str]) -> str:
        def read_on_rank_0() -> str:
            with at_files():  # typing takes time
                return read()

        return broadcast_from_device("input", mesh_of_program(), "standard input", read_on_rank_0) or ""


def _seed_alike() -> None:
    """Seed the global random generators of Python and NumPy, which libraries use, alike on all ranks. Collective."""
    seed = broadcast_from_device(
        "a seed", mesh_of_program(), "a seed for random numbers", lambda: random.getrandbits(32)
    )
    random.seed(seed)
    np.random.seed(seed)


def hold_back() -> None:
    """Keep the output of this rank in temporary files, and register a function that shows it."""
    stdout, stderr = sys.stdout, sys.stderr
    files = TemporaryFile(), TemporaryFile()  # noqa: SIM115
    buffers = [TextIOWrapper(file, "utf-8", "replace", write_through=True) for file in files]
    sys.stdout, sys.stderr = buffers

    def show(is_shown: bool) -> None:
        sys.stdout, sys.stderr = stdout, stderr
        for buffer, stream in zip(buffers, (stdout, stderr), strict=True):
            if is_shown:
                _copy(buffer, stream)

    abort.set_output(stderr, show)


def _copy(buffer: TextIO, stream: TextIO) -> None:
    buffer.flush()
    buffer.seek(0)
    stream.write(buffer.read())
    stream.flush()
