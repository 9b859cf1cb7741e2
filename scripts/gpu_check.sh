#!/usr/bin/env bash
# All that needs a GPU, in one go, on a machine that may have no network and no .venv: builds for its
# GPU alone with the Python that is first in PATH (or .venv's), runs tests/gpu, measures, and writes
# build/gpu/. Not yet run on a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -x .venv/bin/python ]] && export PATH="$PWD/.venv/bin:$PATH"
out=build/gpu
mkdir -p "$out"

python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "torch sees no GPU here")'
arch=$(python -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
CMAKE_ARGS="${CMAKE_ARGS:-} -DCMAKE_CUDA_ARCHITECTURES=$arch" python setup.py -q build_ext --inplace
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

status=0
timeout 240 python -m pytest tests/gpu -q --junitxml="$out/tests.xml" || status=1
timeout 120 python benchmarks/one_gpu.py --json "$out/one_gpu.json" || status=1
if command -v compute-sanitizer >/dev/null; then
  timeout 120 compute-sanitizer --error-exitcode 1 \
    python -m pytest tests/gpu/test_all_reduce.py -q -k 'unaligned' || status=1
else
  echo "compute-sanitizer is not here: not run"
fi
exit "$status"
