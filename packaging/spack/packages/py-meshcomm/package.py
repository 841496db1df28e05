"""meshcomm in Spack. There is no release to download yet, so Spack takes the source archive of a clone.

In the clone::

    make dist
    spack repo add packaging/spack
    cd dist && spack install --no-checksum py-meshcomm ^mpich
"""

import os

from spack.package import *

try:  # Spack 1 has this class in its repository of packages, earlier ones have it in spack.package
    from spack_repo.builtin.build_systems.python import PythonPackage
except ImportError:
    pass


class PyMeshcomm(PythonPackage):
    """Meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy."""

    url = f"file://{os.getcwd()}/meshcomm-0.1.0.tar.gz"
    manual_download = True

    license("BSD-3-Clause")

    version("0.1.0")

    variant("fft", default=True, description="Fourier transforms and filters, by SciPy")
    variant("files", default=False, description="HDF5 and zarr files")

    depends_on("c", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cython@3.1:", type="build")
    depends_on("py-numpy@2.1:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type="run", when="+fft")
    depends_on("py-h5py@3.8:", type="run", when="+files")
    depends_on("py-zarr@3:", type="run", when="+files")
    depends_on("py-ml-dtypes", type="run", when="+files")
