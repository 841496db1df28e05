"""``python -m meshcomm run``."""

import os
import re
import runpy
import sys
from pathlib import Path
from types import TracebackType

from meshcomm.core.failures import abort
from meshcomm.core.failures.forks import exit_code
from meshcomm.core.failures.launchers import are_several, is_reported_by_another
from meshcomm.core.failures.liveness import leave_all
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.meshes import common_world
from meshcomm.core.ranks.mpi import MPIWorld
from meshcomm.errors import CollectiveMismatch, MeshError

LEAVE_WITHIN = 1.0
"""Seconds. Under ``python -m meshcomm run`` a rank that calls sys.exit with an error waits this long for the others to
end, too, before it ends the job."""


def run(program: list[str], is_module: bool = False, of_numpy: bool = False) -> None:
    """Run *program*, a script or a module with its arguments, as ``__main__``. Collective over COMM_WORLD.

    If a rank fails, or ends while others wait for it, the job ends and says why.

    Parameters
    ----------
    program: path or name of the program, and its arguments
    is_module: whether the program is a module
    of_numpy: whether the program is a script of NumPy: see `meshcomm.tools.cli.scripts`
    """
    abort.install_hooks()
    is_watched = are_several() and abort.ends_jobs()
    if is_watched:
        world = _world_or_exit()
        world.rank_set(range(world.size)).listen()
    sys.argv[:] = program
    if of_numpy:
        from meshcomm.tools.cli.scripts import NumPyScript

        watch.divergence_hint = _DIVERGENCE_HINT
        NumPyScript(Path(os.getcwd()) if is_module else Path(program[0]).resolve().parent).begin()
    try:
        _execute(program[0], is_module)
    except SystemExit as error:
        code = exit_code(error)
        if code and is_watched and not leave_all(LEAVE_WITHIN):
            abort.end_job(f"it called sys.exit({error.code!r})", code)
        raise
    except BaseException as error:
        error.with_traceback(_program_traceback(error))
        if of_numpy:
            _explain(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(exit_code(error))


def _world_or_exit() -> MPIWorld:
    """Return the world of COMM_WORLD. If several processes each see a world of one rank, print why once, and exit."""
    try:
        return common_world()
    except MeshError as error:
        if not is_reported_by_another(error):
            abort.say(str(error))
        sys.exit(1)


def _execute(program: str, is_module: bool) -> None:
    if is_module:
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()  # the command meshcomm begins with the folder that it is in
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not Path(program).exists():
        abort.say_once(f"can't open file {program!r}: there is none in {os.getcwd()}")
        sys.exit(2)
    if Path(program).is_dir() and not any(Path(program, f"__main__.{suffix}").exists() for suffix in ("py", "pyc")):
        abort.say_once(f"{program!r} is a folder, and has no __main__.py: name a script")
        sys.exit(2)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    runpy.run_path(program, run_name="__main__")


def _program_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of *error* from the first frame of the program on, without our imports."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, *_RUNPY_FILES):
        traceback = traceback.tb_next
    entry = traceback
    while entry is not None and entry.tb_next is not None:
        if entry.tb_next.tb_frame.f_code.co_filename == _SCRIPTS_FILE:  # an import of the script
            entry.tb_next = entry.tb_next.tb_next
        else:
            entry = entry.tb_next
    return traceback


def _explain(error: BaseException) -> None:
    """Add a note on what *error* means in a script that was written for one process."""
    if isinstance(error, CollectiveMismatch):
        error.add_note(_DIVERGENCE_HINT)
    elif isinstance(error, TypeError | ValueError) and are_several() and _ARRAY_ERROR.search(str(error)):
        error.add_note(_ARRAY_HINT)


_ARRAY_ERROR = re.compile("read-only|read-write|(not|got) ndarray|a 'ndarray' object")
_ARRAY_HINT = (
    "Where an array is cut over the ranks, libraries get a copy that is only read, and code in C may take no such "
    "array: give it x.to_numpy(), which has all elements, and write back by x[...] = array. A field of a record is "
    "set by z['field'][5] = 7."
)
_DIVERGENCE_HINT = (
    "All ranks run the script, and have to compute the same. These differ between ranks: clocks, os.urandom and what "
    "comes of it (uuid, secrets, names of tempfile), os.getpid, id, the order of sets of texts, and names of hosts. "
    "np.errstate, np.seterr and filters of warnings have to be the same on all ranks."
)

_SCRIPTS_FILE = str(Path(__file__).with_name("scripts.py"))


_RUNPY_FILES = (runpy.__file__, "<frozen runpy>")
