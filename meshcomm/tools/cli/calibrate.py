"""``python -m meshcomm calibrate``."""

import json
from collections.abc import Callable
from pathlib import Path

import meshcomm
from meshcomm.core._files import check_can_create, replacing
from meshcomm.core.failures import launchers
from meshcomm.core.layouts.machine import DISK_CONSTANTS, Machine
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.hosts import MACHINE_FILE
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import MeshError
from meshcomm.tools.cli import about
from meshcomm.tools.cli.fit import BETWEEN, WITHIN, Calibration, Fit
from meshcomm.tools.cli.fit import calibrate as measured
from meshcomm.tools.cli.info import Rows, print_rows, rank_rows, unit_cost
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.terminal import say


def calibrate(file: str | None) -> int:
    """Measure the constants of the cost model, print them, and write them to *file* if given. Collective.

    Return 0, or 1 if that is not possible.
    """
    is_first = launchers.is_first()
    about.forget_machine_file()  # it may be the file that this call is to write
    try:
        location = location_in(meshcomm.create_mesh())
        assert location is not None
        rank_set = location.rank_set
        output = _Output(file if rank_set.rank == 0 else None)
        agreement.agree(rank_set, "calibrate", output.error)
        calibration, hosts = (
            measured(rank_set, Path(file).absolute().parent if file else Path.cwd()),
            about.gather_hosts(rank_set.everyone.communicator()),
        )
        if rank_set.rank == 0:
            print_rows([*rank_rows(hosts), *_calibration_rows(calibration)])
        output.write(json.dumps(calibration.constants, indent=2) + "\n")
        agreement.agree(rank_set, "the end of calibrate", output.error)
    except MeshError as error:
        print_once(f"meshcomm: {error}")
        return 1
    if is_first and file is not None:
        say(f"\nwritten to {file}; to plan by these constants, run programs with {MACHINE_FILE}={file}")
    return 0


class _Output:
    """A file that `write` replaces as a whole; until then it stays as it was. A path of None is no file.

    `error` is what went wrong, for all ranks to agree on.
    """

    def __init__(self, path: str | None) -> None:
        self.error: MeshError | None = None
        self._path = path and Path(path)
        self._try(check_can_create)  # fail before anything is measured, not after it

    def write(self, text: str) -> None:
        """Write *text* to the file, or set `error`."""

        def write(path: Path) -> None:
            with replacing(path) as file:
                file.write(text)

        self._try(write)

    def _try(self, action: Callable[[Path], None]) -> None:
        if not self._path:
            return
        try:
            action(self._path)
        except OSError as error:
            self.error = MeshError(f"{self._path} cannot be written: {error.strerror}")


def _calibration_rows(calibration: Calibration) -> Rows:
    rows: Rows = []
    default_machine = Machine()
    for title, names, fit, reason in (
        ("within a node", WITHIN, calibration.within, "no node has two ranks"),
        ("between nodes", BETWEEN, calibration.between, "all ranks are on one node"),
        ("in memory", ("gamma",), calibration.memory, ""),
        ("in files", DISK_CONSTANTS, calibration.disk, "a rank cannot make a file here"),
    ):
        rows.append((title, _quality_text(fit) if fit is not None else f"not measured, {reason}: these are defaults"))
        machine = default_machine if fit is None else fit.applied_to(default_machine)
        rows += [(f"  {name}", unit_cost(name, getattr(machine, name))) for name in names]
    return rows


def _quality_text(fit: Fit) -> str:
    return f"fits {fit.measured} measurements within a factor of {fit.typical:.2f}, at worst {fit.worst:.2f}"
