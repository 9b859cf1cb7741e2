#!/usr/bin/env bash
# Builds and, without BUILD_ONLY, runs the C++ tests: scripts/ctest.sh [address|thread]
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${1:-}
build=build/tests${sanitizer:+-$sanitizer}

cmake -S . -B "$build" -G Ninja -DROCENANTE_TESTS=ON -DROCENANTE_CUDA=OFF \
  -DROCENANTE_SANITIZE="$sanitizer" -DCMAKE_MAKE_PROGRAM="$(command -v ninja)"
cmake --build "$build" -j "${MAX_JOBS:-$(nproc)}"
[[ -z ${BUILD_ONLY:-} ]] || exit 0

# Without address randomization: GCC 12's ThreadSanitizer stops at how widely newer kernels spread it.
setarch --addr-no-randomize ctest -j "${MAX_JOBS:-$(nproc)}" --test-dir "$build" --output-on-failure
