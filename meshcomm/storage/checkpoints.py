"""Checkpoints of a run: one folder for each step, the newest ones kept."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

from meshcomm.blocks.session import in_session
from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._arguments import as_integer, as_path, quote
from meshcomm.core._callers import warn
from meshcomm.core._files import resolved
from meshcomm.core.arrays.trees import tensors_in
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import create_mesh, default_mesh
from meshcomm.errors import CheckpointError
from meshcomm.storage import files, signals
from meshcomm.storage.formats.folder import MANIFEST, FolderWriter, contents
from meshcomm.storage.load import load
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.request import Layouts, Loaded, PathLike, meshes_of
from meshcomm.storage.save import SaveRequest, save, start_save
from meshcomm.storage.trees import flattened

_FOLDER_NAME = re.compile(r"step-([0-9]{9,18})")


class Checkpoints:
    """The checkpoints of a run: a folder with a folder for each step that was saved.

    An incomplete step, whose save was cut off, is ignored; the next save removes it. Old steps are removed only after
    a new one is on the disk, and never the one that was just saved.

    Parameters
    ----------
    folder: folder of the checkpoints; the first save makes it
    keep: number of newest readable steps to keep; None keeps all
    keep_every: steps divisible by this number are kept, too
    mesh: mesh of the ranks that decide together; by default the mesh of the tensors, or of the layouts; in `wanted`,
        all ranks
    save_on: signal, such as ``"SIGUSR1"``, that makes `wanted` true; it is handled from now on

    ``ValueError`` for other numbers, and for a signal that cannot be handled: only the main thread can set a handler.
    ``CheckpointError`` from its methods, on all ranks, if *folder* is a file.

    >>> import tempfile, numpy as np, meshcomm as mc
    >>> folder = tempfile.mkdtemp()
    >>> def program():
    ...     run = mc.Checkpoints(folder, keep=2)
    ...     t = mc.distribute(np.arange(3), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     for step in range(4):
    ...         run.save(step, {"w": t + step, "rate": 0.1})
    ...     step, tree = run.restore({"w": t.layout})
    ...     return run.steps(), step, tree["w"].local.tolist(), tree["rate"]
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([2, 3], 3, [3, 4], 0.1), ([2, 3], 3, [5], 0.1)]
    """

    __module__ = "meshcomm"

    def __init__(
        self,
        folder: PathLike,
        keep: int | None = 3,
        keep_every: int | None = None,
        mesh: Mesh | None = None,
        *,
        save_on: str | int | None = None,
    ) -> None:
        for name, number in (("keep", keep), ("keep_every", keep_every)):
            if number is not None and as_integer(number, name, ValueError) < 1:
                raise ValueError(f"{name} must be 1 or more, or None, not {quote(number)}")
        self.folder, self.keep, self.keep_every = as_path(folder, "Checkpoints(folder)"), keep, keep_every
        self._mesh = mesh
        self._signal = None if save_on is None else signals.number_of(save_on)
        self._signal_mesh: Mesh | None = None
        self._answered_count, self._is_wanted = 0, False
        if self._signal is not None:
            signals.count(self._signal)
            self._answered_count = signals.arrived(self._signal)

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.folder)!r}, keep={self.keep}, keep_every={self.keep_every})"

    def path_of(self, step: int) -> Path:
        """Return the folder of a step. ``ValueError`` for a number below 0.

        >>> import meshcomm as mc
        >>> mc.Checkpoints("run").path_of(7).as_posix()
        'run/step-000000007'
        """
        step = as_integer(step, "step", ValueError)
        if not 0 <= step < 10**18:
            raise ValueError(f"step {quote(step)} must be 0 or more, and have at most 18 digits")
        return self.folder / _folder_name(step)

    def steps(self) -> list[int]:
        """Return the steps that are complete, ascending. Their data are not checked.

        >>> import tempfile, meshcomm as mc
        >>> run, t = mc.Checkpoints(tempfile.mkdtemp()), mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> for step in (10, 20):
        ...     run.save(step, {"w": t})
        >>> run.steps()
        [10, 20]
        """
        return [step for step, path in step_folders(self.folder) if (path / MANIFEST).is_file()]

    def latest(self) -> int | None:
        """Return the newest step that can be read, or None. Its data are not compared with their checksums.

        >>> import tempfile, meshcomm as mc
        >>> run, t = mc.Checkpoints(tempfile.mkdtemp()), mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> print(run.latest())
        None
        >>> run.save(10, {"w": t})
        >>> run.latest()
        10
        """
        step_and_names = self._newest({})
        return None if step_and_names is None else step_and_names[0]

    def _newest(self, problems: dict[int, Exception]) -> tuple[int, list[str]] | None:
        """Return the newest step that can be read and is not in *problems*, and the names of its arrays.

        A step that cannot be read is added to *problems*. Another job may save and remove steps meanwhile: so the
        folder is listed again after each.
        """
        while True:
            steps = self.steps() or self.steps()  # the only listed step may have been removed after a newer save
            step = next((step for step in reversed(steps) if step not in problems), None)
            if step is None:
                return None
            try:
                return step, list(contents(self.path_of(step)).arrays)
            except (CheckpointError, OSError) as error:
                problems[step] = error

    def wanted(self) -> bool:
        """Return whether the signal *save_on* has arrived on any rank. Collective over the mesh, or over all ranks.

        The batch system decides which ranks receive a signal, and when. So all ranks call this after each step, and
        all get the same answer at the same step: then save. Signals that arrive until that save is complete are one
        request. Ranks outside of the mesh get False. The call takes as long as a barrier.

        ``ValueError`` without *save_on*.

        >>> import signal, tempfile, meshcomm as mc
        >>> run = mc.Checkpoints(tempfile.mkdtemp(), mesh=mc.create_mesh([("x", 1)]), save_on="SIGUSR1")
        >>> signal.raise_signal(signal.SIGUSR1)
        >>> run.wanted()
        True
        """
        if self._signal is None:
            raise ValueError('no signal makes a checkpoint wanted: pass one, Checkpoints(folder, save_on="SIGUSR1")')
        if self._signal_mesh is None:
            self._signal_mesh = self._mesh or create_mesh()
        arrived_count = signals.arrived(self._signal)
        call, is_due = (
            f"whether a checkpoint is wanted in {quote(str(self.folder))}",
            int(arrived_count > self._answered_count),
        )
        self._is_wanted = bool(
            in_session("checkpoints", self._signal_mesh, lambda session: session.agree(call, value=is_due))
        )
        self._answered_count = arrived_count
        return self._is_wanted

    @refusable
    def save(
        self,
        step: int,
        tree: object,
        metadata: Mapping[str, object] | None = None,
        *,
        max_scratch_bytes: int | None = None,
    ) -> None:
        """Save *tree* as one step, and then remove old steps. Collective over the meshes of the tensors.

        Parameters
        ----------
        step: number of the step; an existing one is replaced
        tree, metadata, max_scratch_bytes: as for `save`

        Errors are those of `save`; then no step is removed.

        >>> import tempfile, meshcomm as mc
        >>> run = mc.Checkpoints(tempfile.mkdtemp(), keep=1)
        >>> t = mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> run.save(10, {"w": t})
        >>> run.save(20, {"w": t}, metadata={"loss": 0.5})
        >>> run.steps()
        [20]
        """
        mesh = self._prepare(step, tree)
        with self._default_mesh():
            save(self.path_of(step), tree, metadata=metadata, overwrite=True, max_scratch_bytes=max_scratch_bytes)
        self._finish(step, mesh)
        self._answer_signals()

    @refusable
    def start_save(
        self,
        step: int,
        tree: object,
        metadata: Mapping[str, object] | None = None,
        *,
        max_scratch_bytes: int | None = None,
        max_staged_bytes: int | None = None,
    ) -> "CheckpointRequest":
        """Begin to save *tree* as one step, and return a request: call its `wait`. Collective, as `save` is.

        The tensors may be changed as soon as this returns.

        Parameters
        ----------
        step: number of the step; an existing one is replaced
        tree, metadata, max_scratch_bytes, max_staged_bytes: as for `start_save`

        >>> import tempfile, meshcomm as mc
        >>> run, t = mc.Checkpoints(tempfile.mkdtemp()), mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> request = run.start_save(10, {"w": t})
        >>> request.wait()
        >>> run.steps()
        [10]
        """
        mesh = self._prepare(step, tree)
        with self._default_mesh():
            request = start_save(
                self.path_of(step),
                tree,
                metadata=metadata,
                overwrite=True,
                max_scratch_bytes=max_scratch_bytes,
                max_staged_bytes=max_staged_bytes,
            )
        self._answer_signals()
        return CheckpointRequest(request, lambda: self._finish(step, mesh))

    @refusable
    def restore(
        self, layout_map: Layouts = None, step: int | None = None, out: object = None, *, check: bool = True
    ) -> tuple[int, Loaded]:
        """Return a step and its tree: the newest one that is not damaged. Collective over the meshes of the layouts.

        All ranks get the same step. A step that is damaged is passed over, and the first rank warns of it.

        Parameters
        ----------
        layout_map: layouts by name, as for `load`; the layouts at the save do not matter
        step: the only step to restore; then its errors are raised
        out: tensors to overwrite and return
        check: whether to compare the checksums of all data; otherwise a step with wrong data is not detected

        ``FileNotFoundError`` if there is no such step, or none at all. ``CheckpointError`` if there are steps but none
        can be read, and if a name of *out* or *layout_map* is missing.

        >>> import tempfile, meshcomm as mc
        >>> run, layout = mc.Checkpoints(tempfile.mkdtemp()), mc.Layout(["x"], mc.create_mesh([("x", 1)]))
        >>> run.save(10, {"w": mc.ones(3, int, layout)})
        >>> step, tree = run.restore({"w": layout})
        >>> step, tree["w"].to_numpy().tolist()
        (10, [1, 1, 1])
        """
        names = None if out is None else list(flattened(out)[1])
        wanted_step = None if step is None else as_integer(step, "step", ValueError)
        mesh = self._mesh or common_mesh(meshes_of(layout_map, out))
        call = f"restore from {quote(str(self.folder))}" + ("" if wanted_step is None else f", step {wanted_step}")
        find_step = _StepFinder(self, wanted_step)
        while True:
            step_and_names = broadcast_from_device("checkpoints", mesh, call, find_step)
            found_step, array_names = step_and_names if step_and_names is not None else find_step()
            missing = [name for name in names or () if name not in array_names]
            if missing:
                raise CheckpointError(f"{self.path_of(found_step)} has no array {quote(missing[0])}, which out has")
            try:
                with self._default_mesh():
                    return found_step, load(self.path_of(found_step), layout_map, out=out, check=check)
            except (CheckpointError, FileNotFoundError) as error:
                if wanted_step is not None or (isinstance(error, CheckpointError) and error.unknown_name):
                    raise
                find_step.problems[found_step] = error
            except OSError as error:
                raise CheckpointError(f"{self.path_of(found_step)} cannot be read: {error}") from error

    def _answer_signals(self) -> None:
        """Count the signals that have arrived since this save was wanted as one request with it."""
        if self._is_wanted and self._signal is not None:
            self._answered_count, self._is_wanted = signals.arrived(self._signal), False

    def _prepare(self, step: int, tree: object) -> Mesh:
        """Make the folder, remove unfinished saves, and return the mesh that decides. Collective over it."""
        self.path_of(step)
        mesh = self._mesh or common_mesh(tensor.mesh for tensor in tensors_in(tree))
        call = f"checkpoint of step {step} in {quote(str(self.folder))}"
        broadcast_from_device("checkpoints", mesh, call, self._remove_unfinished)
        return mesh

    def _finish(self, step: int, mesh: Mesh) -> None:
        """Remove old steps, after *step* is complete. Collective over the mesh."""
        broadcast_from_device(
            "checkpoints", mesh, f"the end of a checkpoint of step {step}", lambda: self._remove_old(step)
        )

    def _default_mesh(self) -> AbstractContextManager[object]:
        return nullcontext() if self._mesh is None else default_mesh(self._mesh)

    def _remove_unfinished(self) -> None:
        """Remove the folders of saves that were cut off; saves that are running hold locks."""
        folders = step_folders(resolved(self.folder))
        files.make_folders(self.folder)
        for _, path in folders:
            if not (path.is_symlink() or (path / MANIFEST).exists()):
                FolderWriter(path, [], [], {}).remove_leftovers()
                files.remove_if_empty(path)

    def _remove_old(self, saved_step: int) -> None:
        """Remove the steps that should not be kept, the oldest first."""
        if self.keep is None:
            return
        steps = self.steps()
        newest = list(islice((step for step in reversed(steps) if _problem(self.path_of(step)) is None), self.keep))
        if len(newest) < self.keep:
            return
        for step in steps:
            is_kept = self.keep_every is not None and step % self.keep_every == 0
            if step < newest[-1] and step != saved_step and not is_kept:
                _remove(self.path_of(step))


class CheckpointRequest:
    """A save of one step that goes on in the background, as `Checkpoints.start_save` returns it."""

    def __init__(self, request: SaveRequest, finish: Callable[[], object]) -> None:
        self._request, self._finish = request, finish
        self._is_complete = False

    def __repr__(self) -> str:
        return f"CheckpointRequest({self._request!r})"

    def test(self) -> bool:
        """Return whether this rank has written all its data."""
        return self._request.test()

    def wait(self) -> None:
        """Wait until all is on the disk, and remove old steps. Collective over the meshes of the tensors.

        The next call does nothing, or raises the same error. ``OSError`` on all ranks if one could not write.
        """
        if not self._is_complete:
            self._request.wait()
            self._finish()
            self._is_complete = True


class _StepFinder:
    """Finds the step to restore, on the first rank: *wanted_step*, or the newest step that is not in `problems`."""

    def __init__(self, run: Checkpoints, wanted_step: int | None) -> None:
        self._run, self._wanted_step = run, wanted_step
        self.problems: dict[int, Exception] = {}
        self._warned_steps: set[int] = set()

    def __call__(self) -> tuple[int, list[str]]:
        """Return the step, and the names of its arrays; warn of steps that are passed over."""
        run, wanted_step = self._run, self._wanted_step
        if wanted_step is not None:
            if not run.path_of(wanted_step).exists():
                raise FileNotFoundError(f"{run.folder} has no step {wanted_step}; it has {quote(run.steps())}")
            return wanted_step, list(contents(run.path_of(wanted_step)).arrays)
        step_and_names, steps = run._newest(self.problems), run.steps()
        for step, problem in self.problems.items():
            if step in steps and step not in self._warned_steps:  # otherwise it was removed after a newer save
                warn(f"{run.path_of(step)} is passed over: {problem}", RuntimeWarning)
            self._warned_steps.add(step)
        if step_and_names is not None:
            return step_and_names
        if steps:
            raise CheckpointError(f"{run.folder} has the steps {quote(steps)}, but none can be read")
        raise FileNotFoundError(f"{run.folder} has no checkpoint")


def _problem(path: Path) -> Exception | None:
    """Return the error with which a checkpoint cannot be read, or None; its data are not read."""
    try:
        contents(path)
    except (CheckpointError, OSError) as error:
        return error
    return None


def step_folders(folder: Path) -> list[tuple[int, Path]]:
    """Return the steps in *folder*, complete or not, with their folders; ``CheckpointError`` if it is a file."""
    if not folder.is_dir():
        if folder.exists():
            raise CheckpointError(f"{folder} is a file, no folder: a run has a folder with one for each checkpoint")
        return []
    matches = [(_FOLDER_NAME.fullmatch(path.name), path) for path in files.entries(folder) if path.is_dir()]
    steps = ((int(match[1]), path) for match, path in matches if match)
    return sorted((step, path) for step, path in steps if path.name == _folder_name(step))


def _folder_name(step: int) -> str:
    return f"step-{step:09d}"


def _remove(path: Path) -> None:
    """Remove a checkpoint: first its manifest, so that it is complete or ignored at any time."""
    if not path.is_symlink():
        files.remove(path / MANIFEST)
        files.sync_folder(path)
    files.remove(path)
