"""``meshcomm shell``, ``jupyter`` and ``kernel``: prompts and notebooks whose cells run on all ranks."""

import argparse
import os
import shlex
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from meshcomm.core.failures.launchers import are_several, launched
from meshcomm.errors import MeshcommError
from meshcomm.tools.cli.launch import found_mpiexec, usual_environment
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.scripts import NumPyScript
from meshcomm.tools.cli.terminal import say


def kernel(options: argparse.Namespace) -> int:
    """Start the ranks of a kernel, or be one of them."""
    if options.role:
        return _run_rank(options)
    from meshcomm.tools.interactive.launch import keep_kernel

    return keep_kernel(_rank_command(options, "kernel"), _environment(options.ranks), options.connection)


def jupyter(options: argparse.Namespace) -> int:
    """Install a kernel for Jupyter, list those that are installed, or remove one."""
    if find_spec("jupyter_client") is None:
        say("meshcomm: no Jupyter here: install the extra jupyter, or ipykernel and jupyterlab", error=True)
        return 1
    install = import_module("meshcomm.tools.interactive.install")
    default = f"{'NumPy' if options.numpy else 'Python'} on {options.ranks} rank{'s' * (options.ranks > 1)}"
    try:
        if options.list:
            for name, (_, command) in install.installed().items():
                say(f"{name}: {command}")
        elif options.remove:
            install.remove(options.remove)
            say(f"removed {options.remove}")
        else:
            folder = install.install(options.name or default, _kernel_arguments(options))
            say(f"installed {options.name or default} in {folder}")
    except (MeshcommError, OSError) as error:
        say(f"meshcomm: {error}", error=True)
        return 1
    return 0


def shell(options: argparse.Namespace) -> int:
    """Run a prompt on ranks: IPython's, else Python's own."""
    if are_several():
        print_once("meshcomm: shell launches its ranks: start it without mpiexec, as in meshcomm shell -n 4")
        return 2
    if options.file is not None and not options.file.exists():
        say(f"meshcomm: can't open file {str(options.file)!r}", error=True)
        return 2
    from meshcomm.tools.interactive.terminal import lend_terminal

    role = "ipython" if find_spec("IPython") is not None else "python"
    return lend_terminal(_rank_command(options, role), _environment(options.ranks), options.file)


def _kernel_arguments(options: argparse.Namespace) -> list[str]:
    """Return the command-line arguments for ``meshcomm kernel`` that correspond to *options*."""
    mpiexec = ["--mpiexec", options.mpiexec] if options.mpiexec else []
    return ["-n", str(options.ranks), *(["--numpy"] if options.numpy else []), *mpiexec]


def _rank_command(options: argparse.Namespace, role: str) -> list[str]:
    """Return the command that starts the ranks of a kernel or a prompt; its last argument is ``-f``.

    The caller appends the connection file or the socket.
    """
    launcher = shlex.split(options.mpiexec) if options.mpiexec else [found_mpiexec(options.command)]
    if shutil.which(launcher[0]) is None:
        say(f"meshcomm: {options.command}: the launcher {launcher[0]!r} is not on PATH", error=True)
        sys.exit(2)
    rank_arguments = [sys.executable, "-m", "meshcomm", "kernel", "--rank", role]
    return [*launcher, "-n", str(options.ranks), *rank_arguments, *_kernel_arguments(options), "-f"]


def _environment(ranks: int) -> dict[str, str]:
    """Return the environment of the ranks, with ``MESHCOMM_ABORT=0``: an error in a cell does not end the job."""
    return {**usual_environment(ranks), **os.environ, "MESHCOMM_ABORT": "0"}


def _run_rank(options: argparse.Namespace) -> int:
    from meshcomm.tools.interactive.cells import Job

    if launched() is None and options.ranks > 1:
        print_once("meshcomm: kernel --rank is what meshcomm kernel starts by mpiexec")
        return 2
    job = Job()
    if options.numpy:
        NumPyScript(Path.cwd()).begin_imports()
    if options.role == "python":
        from meshcomm.tools.interactive.plain import run

        run(job, options.connection)
    elif job.rank:
        from meshcomm.tools.interactive.shells import follow

        os.environ["MPLBACKEND"] = "agg"  # rank 0 shows figures
        follow(job)
    elif options.role == "ipython":
        from meshcomm.tools.interactive.prompt import serve as prompt

        prompt(job, options.connection)
    else:
        from meshcomm.tools.interactive.kernel import serve

        serve(job, options.connection, options.note)
    return 0
