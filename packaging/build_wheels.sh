#!/bin/sh
# Builds a wheel for each Python that is named, into dist/, with the compiler of this machine: make wheels calls it.
# ARCH=aarch64 builds for ARM with a cross compiler (apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross).
set -eu

for python in "$@"; do
    # The compiled modules use no library but glibc, so the same Python's headers serve every processor of 64 bits.
    if [ -n "${ARCH:-}" ]; then
        tag=$("$python" -c 'import sys; print("cpython-{}{}".format(*sys.version_info))')
        export CC="$ARCH-linux-gnu-gcc" LDSHARED="$ARCH-linux-gnu-gcc -shared"
        export _PYTHON_HOST_PLATFORM="linux-$ARCH" SETUPTOOLS_EXT_SUFFIX=".$tag-$ARCH-linux-gnu.so"
    fi
    rm -rf build/wheel
    "$python" -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir build/wheel .
    # The name of the wheel says which glibc it needs at least. This fails if it links to any other library.
    auditwheel repair --only-plat --wheel-dir dist build/wheel/*.whl
done
