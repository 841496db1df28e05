#!/bin/sh
# Installs the wheel of dist/ as a user would, for each Python that is named, and tests it: make test-wheels calls it.
# The first one is built once more: that has to give the same file.
# PATH has the new environment only: no compiler is found. PYTHONSAFEPATH keeps the sources of the clone out of the way.
set -eu
export PYTHONSAFEPATH=1

rm -rf build/again
DIST=build/again sh packaging/build_wheels.sh "$1"
for again in build/again/*; do
    cmp "$again" "dist/${again##*/}"
done
for python in "$@"; do
    rm -rf build/user
    "$python" -m venv build/user
    wheel=$(echo dist/*-"$("$python" -c 'import sys; print("cp{}{}".format(*sys.version_info))')"-*_"$(uname -m)".whl)
    echo "== $("$python" --version) with $wheel"
    (
        PATH="$PWD/build/user/bin"
        pip install -q --disable-pip-version-check --only-binary :all: "$wheel[mpich]" pytest pytest-mpi hypothesis
        mpiexec -n 2 python -m meshcomm info
        mpiexec -n 2 python mpi_examples/quickstart.py
        # What is compiled, on small samples: the other tests prove the rest, from the same sources.
        python -m pytest -q --color=no --quick -m "not jobs and not slow" tests/memory tests/transport
        mpiexec -n 2 python -m pytest -q --color=no --quick --only-mpi tests/mpi/test_mpi_relayout.py
    )
done
