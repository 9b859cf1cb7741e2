#!/usr/bin/env bash
# Builds for torch 2.13, the oldest release supported, and runs a smoke test on the installed wheel.
# The environment to use comes first in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

python -c 'import torch' 2>/dev/null || pip install torch==2.13.0
pip install 'setuptools>=77' 'cmake>=3.24' ninja numpy pytest hypothesis expecttest
# Without the kernels, which do not see torch, and which the other build compiles.
CMAKE_ARGS="-DROCENANTE_CUDA=OFF" pip install --no-build-isolation --no-deps --force-reinstall .

# Apart from the source tree, whose rocenante/ holds an extension for another torch.
rm -rf build/torch213
mkdir -p build/torch213
cp -r tests pyproject.toml build/torch213
cd build/torch213
python - <<'PYTHON'
import torch.distributed as dist

dist.init_process_group("rocenante", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
import torch

x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [1.0, 1.0, 1.0], x
dist.destroy_process_group()
print("torch", torch.__version__, "finds rocenante by itself")
PYTHON
python -m pytest -m 'not softroce' tests/collectives/test_entry_point.py \
  tests/collectives/test_communicator.py
