"""``python -m meshcomm clean``."""

from meshcomm.core._arguments import counted
from meshcomm.core._units import bytes_text
from meshcomm.core.failures.segments import FOLDER, left_behind
from meshcomm.tools.cli.show import on_first_rank
from meshcomm.tools.cli.terminal import say


def clean(dry_run: bool) -> int:
    """Remove the files that killed jobs of this user left in /dev/shm, or list them; return the exit code."""
    return on_first_rank(lambda: _clean(dry_run))


def _clean(dry_run: bool) -> None:
    sizes = left_behind()
    for path, nbytes in sizes.items():
        if not dry_run:
            path.unlink(missing_ok=True)
        say(f"{'found' if dry_run else 'removed'} {path}, {bytes_text(nbytes)}")
    if not sizes:
        say(f"jobs that ended have left nothing of yours in {FOLDER}")
    else:
        say(f"{counted(len(sizes), 'file')}, {bytes_text(sum(sizes.values()))}")
