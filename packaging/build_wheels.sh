#!/bin/sh
# Builds a wheel for each Python that is named, into dist/ or $DIST, with the compiler of this machine: make wheels calls it.
# ARCH=aarch64 builds for ARM with a cross compiler (apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross).
# packaging/build.lock pins what makes wheels. Two builds of a commit with one compiler give the same files: their dates
# are that of the commit.
set -eu
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH

for python in "$@"; do
    # The compiled modules use no library but glibc, so the same Python's headers serve every processor of 64 bits.
    if [ -n "${ARCH:-}" ]; then
        tag=$("$python" -c 'import sys; print("cpython-{}{}".format(*sys.version_info))')
        export CC="$ARCH-linux-gnu-gcc" LDSHARED="$ARCH-linux-gnu-gcc -shared"
        export _PYTHON_HOST_PLATFORM="linux-$ARCH" SETUPTOOLS_EXT_SUFFIX=".$tag-$ARCH-linux-gnu.so"
    fi
    rm -rf build/wheel build/wheel-env build/lib.* build/temp.*
    "$python" -m venv build/wheel-env
    build/wheel-env/bin/pip install -q --disable-pip-version-check --require-hashes -r packaging/build.lock
    build/wheel-env/bin/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
    # The name of the wheel says which glibc it needs at least. This fails if it links to any other library.
    auditwheel repair --only-plat --wheel-dir "${DIST:-dist}" build/wheel/*.whl
done
python packaging/sbom.py "${DIST:-dist}"/*.whl
