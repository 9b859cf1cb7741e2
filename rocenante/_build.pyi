"""How the installed rocenante._C was built; the module is written by the build."""

TORCH_VERSION: str  # such as "2.14.1+cu130"
CUDA_VERSION: str  # of nvcc; empty: built without CUDA kernels
CUDA_ARCHS: tuple[str, ...]  # such as ("sm_120", "compute_121"); compute_ is PTX
COMPILER: str
BUILD_TYPE: str
