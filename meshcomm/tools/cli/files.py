"""``python -m meshcomm ls``, ``verify`` and ``convert``."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from meshcomm.core._arguments import counted
from meshcomm.core._units import bytes_text
from meshcomm.core.failures import launchers
from meshcomm.core.ranks.meshes import create_mesh
from meshcomm.core.ranks.simulate import simulate
from meshcomm.errors import MeshcommError, printable
from meshcomm.storage import verify as checks
from meshcomm.storage.checkpoints import step_folders
from meshcomm.storage.convert import convert as convert_file
from meshcomm.storage.formats.base import FileContents
from meshcomm.storage.formats.folder import MANIFEST
from meshcomm.storage.formats.known import contents
from meshcomm.storage.opened import Store, StoredArray
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.terminal import say

Row = tuple[str, ...]


def ls(paths: Sequence[Path]) -> int:
    """Print the arrays and the metadata of files, or the steps of folders of checkpoints; return the exit code.

    Under mpiexec the first rank does it alone.
    """
    return _run_for_each(paths, lambda path: _list_steps(path) if _has_steps(path) else _list_arrays(path))


def verify(paths: Sequence[Path]) -> int:
    """Print ``ok``, or what is damaged in files or in each step of folders of checkpoints; return the exit code.

    Under mpiexec the first rank does it alone.
    """
    return _run_for_each(paths, lambda path: _verify_steps(path) if _has_steps(path) else _verify_one(path))


def _run_for_each(paths: Sequence[Path], action: Callable[[Path], int]) -> int:
    exit_code = 0
    for path in paths if _is_first() else ():
        if len(paths) > 1:
            say(f"{printable(str(path))}:")
        exit_code = max(exit_code, _exit_code_of(partial(action, path), partial(say, error=True)))
    return exit_code


def convert(source: Path, target: Path, overwrite: bool) -> int:
    """Write the arrays of *source* to *target*, and return the exit code. Collective over COMM_WORLD."""
    return _exit_code_of(lambda: _convert(source, target, overwrite), print_once)


def _exit_code_of(run: Callable[[], int], report: Callable[[str], None]) -> int:
    """Return the exit code that *run* returns; if *run* fails, *report* why, in one line, and return 1."""
    try:
        return run()
    except (MeshcommError, OSError, ImportError, TypeError, ValueError, KeyError, MemoryError) as error:
        report(f"meshcomm: {'; '.join(str(error).split(chr(10)))}")
        return 1


def _is_first() -> bool:
    return launchers.is_first()


def _has_steps(path: Path) -> bool:
    return path.is_dir() and not (path / MANIFEST).exists() and bool(step_folders(path))


# -- ls ---------------------------------------------------------------------------------------------------------------


def _list_arrays(path: Path) -> int:
    with Store(path) as store:
        rows = [_table_row(store[name]) for name in store.names]
        header = ("name", "shape", "dims", "dtype", "units", "bytes", "layout")
        shown_columns = [
            column
            for column, title in enumerate(header)
            if title not in ("dims", "units") or any(row[column] for row in rows)
        ]
        _print_table([tuple(row[column] for column in shown_columns) for row in (header, *rows)])
        say(_size_text(store[name].nbytes for name in store.names))
        for key, value in store.metadata.items():
            say(printable(f"metadata {key}: {value}"))
        for name, reason in store.left_out.items():
            say(printable(f"left out {name}: {reason}"))
    return 0


def _table_row(array: StoredArray) -> Row:
    """Return the row of an array in the table; dims and units are those of netCDF."""
    dims, units = ", ".join(dim or "-" for dim in array.dims or ()), str(array.metadata.get("units", ""))
    cells = str(array.shape), dims, str(array.dtype), units, bytes_text(array.nbytes)
    return (array.name, *cells, array.layout or "")


def _size_text(sizes: Iterable[int]) -> str:
    """Return the number of arrays and the sum of their *sizes* in bytes, as text."""
    all_sizes = list(sizes)
    return f"{counted(len(all_sizes), 'array')}, {bytes_text(sum(all_sizes))}"


def _list_steps(path: Path) -> int:
    rows = []
    for step, folder in step_folders(path):
        if not (folder / MANIFEST).exists():
            rows.append((str(step), "", "", "not complete"))
            continue
        try:
            stored_arrays = contents(folder).arrays.values()
        except (MeshcommError, OSError) as error:
            rows.append((str(step), "", "", str(error)))
            continue
        rows.append((str(step), str(len(stored_arrays)), bytes_text(sum(array.nbytes for array in stored_arrays)), ""))
    _print_table([("step", "arrays", "bytes", ""), *rows])
    return 0


def _print_table(rows: list[Row]) -> None:
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


# -- verify -----------------------------------------------------------------------------------------------------------


def _verify_one(path: Path) -> int:
    file_contents = contents(path)
    damages = _damage(path, file_contents)
    say("\n".join(map(printable, damages)) if damages else _ok_text(file_contents))
    return int(bool(damages))


def _verify_steps(path: Path) -> int:
    exit_code = 0
    for _, folder in step_folders(path):
        if not (folder / MANIFEST).exists():
            say(f"{folder.name}: not complete, its save was cut off; the next save removes it")
            continue
        try:
            file_contents = contents(folder)
            damages = _damage(folder, file_contents)
        except (MeshcommError, OSError) as error:
            damages = [str(error)]
        say("\n".join(f"{folder.name}: {line}" for line in damages or [_ok_text(file_contents)]))
        exit_code = max(exit_code, int(bool(damages)))
    return exit_code


def _damage(path: Path, file_contents: FileContents) -> list[str]:
    return [] if file_contents.checks is None else checks.verify(path, file_contents)


def _ok_text(stored: FileContents) -> str:
    size_text = _size_text(array.nbytes for array in stored.arrays.values())
    note = "" if stored.checks is not None else "; the format has no checksums, so only its structure was looked at"
    return f"ok: {size_text}{note}"


# -- convert ----------------------------------------------------------------------------------------------------------


def _convert(source: Path, target: Path, overwrite: bool) -> int:
    try:
        if (launchers.launched() or (0, 1))[1] > 1:
            left_out = convert_file(source, target, create_mesh(), overwrite=overwrite)
        else:  # one process needs no MPI
            with simulate(1) as world:
                (left_out,) = world.run(lambda: convert_file(source, target, create_mesh(), overwrite=overwrite))
    except FileExistsError as error:
        raise error if overwrite else FileExistsError(f"{target} is there; --overwrite replaces it") from None
    if _is_first():
        say(
            f"wrote {printable(str(target))}: {_size_text(array.nbytes for array in contents(target).arrays.values())}"
        )
    if left_out and _is_first():
        say(f"meshcomm: {target} does not hold {left_out} of {source}", error=True)
    return 0
