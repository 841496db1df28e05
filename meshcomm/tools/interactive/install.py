"""The kernels that ``meshcomm jupyter`` installs for Jupyter: a file for each, with the command that starts it."""

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager

from meshcomm.core._files import replacing
from meshcomm.core._tracing import Value
from meshcomm.errors import MeshcommError

_OURS_KEY = "meshcomm"
"""The entry in the metadata of a kernel that marks it as one of ours."""


def write_spec(folder: Path, name: str, options: Sequence[str]) -> None:
    """Write the file that describes a kernel to *folder*.

    Parameters
    ----------
    folder: path of a new folder
    name: the name that Jupyter shows
    options: options of ``meshcomm kernel``
    """
    spec: dict[str, Value] = {
        "argv": [sys.executable, "-m", "meshcomm", "kernel", *options, "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False, _OURS_KEY: True},
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "kernel.json") as file:
        json.dump(spec, file, indent=1)


def install(name: str, options: Sequence[str]) -> str:
    """Install a kernel for this user, or in the environment of this Python, and return its folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_spec(Path(folder), name, options)
        prefix = sys.prefix if sys.prefix != sys.base_prefix else None
        directory = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-")
        return str(KernelSpecManager().install_kernel_spec(folder, directory, user=prefix is None, prefix=prefix))


def installed() -> dict[str, tuple[str, str]]:
    """Return the directory and the command of each of our kernels, by the name that Jupyter shows."""
    kernels = {directory: entry["spec"] for directory, entry in KernelSpecManager().get_all_specs().items()}
    return {
        spec["display_name"]: (directory, " ".join(spec["argv"][1:-2]))
        for directory, spec in kernels.items()
        if spec.get("metadata", {}).get(_OURS_KEY)
    }


def remove(name: str) -> None:
    """Remove the kernel that Jupyter shows as *name*; ``MeshcommError`` if there is none of ours."""
    kernels = installed()
    if name not in kernels:
        hint = "meshcomm jupyter --list shows those there are"
        raise MeshcommError(f"there is no kernel of meshcomm called {name!r}; {hint}")
    KernelSpecManager().remove_kernel_spec(kernels[name][0])
