"""What setuptools does first when it compiles the package: say what to install if this machine cannot compile.

`.ci/preflight` knows what to look for, and says it; `make` asks it, too. The environments of `make` share one clone,
in which an editable install leaves what it compiles: it compiles only what is older than its sources.
"""

import os
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError
from setuptools.extension import Extension
from setuptools.modified import newer_group

PREFLIGHT = Path(__file__).parent / ".ci" / "preflight"


class BuildExtensions(build_ext):
    """Compile the extensions; if there is no C compiler, or no headers of Python, end with a line that says so."""

    def build_extensions(self) -> None:
        """Compile, after a look at what this machine has."""
        if sys.platform == "win32":
            raise SetupError("meshcomm: Windows is not supported; use Linux, in WSL for example")
        if sys.platform != "linux":
            self.warn(
                f"meshcomm is tested on Linux only; on {sys.platform} ranks share no memory, and MPI moves all data"
            )
        asked = subprocess.run(
            ["sh", PREFLIGHT, "compiler"],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            raise SetupError(asked.stderr.strip())
        if self.editable_mode:
            self.extensions = [module for module in self.extensions if self._is_old(module)]
        self.parallel = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        # Cython in processes, as it is not made for threads; then the C compiler, in as many threads.
        for module, made in zip(self.extensions, cythonize(self.extensions, nthreads=self.parallel), strict=True):
            module.sources = made.sources
        super().build_extensions()

    def _is_old(self, module: Extension) -> bool:
        sources = [*module.sources, *module.depends, "pyproject.toml"]
        return newer_group(sources, self.get_ext_filename(module.name))
