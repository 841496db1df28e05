"""``meshcomm shell``, ``jupyter`` and ``kernel``: prompts and notebooks whose cells run on all ranks."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from meshcomm.core.failures.launchers import launched
from meshcomm.tools.cli.launch import found_mpiexec, usual_environment
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.scripts import Script


def kernel(options: argparse.Namespace) -> int:
    """Start the ranks of a kernel, or be one of them."""
    if options.rank:
        return _rank(options)
    from meshcomm.tools.interactive.launch import keep_kernel

    return keep_kernel(rank_command(options), environment(options.ranks), options.connection)


def rank_command(options: argparse.Namespace) -> list[str]:
    """Return the command that starts the ranks of a kernel."""
    launcher = shlex.split(options.mpiexec) if options.mpiexec else [found_mpiexec(options.command)]
    return [
        *(*launcher, "-n", str(options.ranks), sys.executable, "-m", "meshcomm", "kernel", "--rank", "-n"),
        *(str(options.ranks), *(["--numpy"] if options.numpy else []), "-f", str(options.connection)),
    ]


def environment(ranks: int) -> dict[str, str]:
    """Return the environment of the ranks: an error of a cell ends no job."""
    return {**usual_environment(ranks), **os.environ, "MESHCOMM_ABORT": "0"}


def _rank(options: argparse.Namespace) -> int:
    from meshcomm.tools.interactive.cells import Job

    if launched() is None and options.ranks > 1:
        print_once("meshcomm: kernel --rank is what meshcomm kernel starts by mpiexec")
        return 2
    job = Job()
    if options.numpy:
        Script(Path.cwd()).begin_imports()
    if job.rank == 0:
        from meshcomm.tools.interactive.kernel import serve

        serve(job, options.connection, options.note)
    else:
        from meshcomm.tools.interactive.shells import follow

        follow(job)
    return 0
