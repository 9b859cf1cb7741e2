"""Runs CMake, which builds everything, against the torch that is installed."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
NO_TORCH = """
rocenante is compiled against the torch that will load it, and no torch was found in {where}.
Install torch first (pip install torch), then run: pip install --no-build-isolation {root}
(uv and python -m build isolate their builds too: give them --no-build-isolation as well.)
"""


def find_torch() -> Path:
    """The folder of the torch to build against: this environment's, even if pip hides it."""
    spec = importlib.util.find_spec("torch")  # finds without importing, which would take seconds
    installed = Path(spec.origin).parent if spec and spec.origin else None
    for folder in (installed, Path(sysconfig.get_path("platlib")) / "torch"):
        if folder and (folder / "include").is_dir():
            return folder
    sys.exit(NO_TORCH.format(where=sys.prefix, root=ROOT))


TORCH = find_torch()
VERSION = runpy.run_path(str(TORCH / "version.py"))["__version__"]


class CMakeBuild(build_ext):
    def run(self) -> None:
        # One folder per torch and Python, so that rebuilds are quick and builds do not clash.
        build = ROOT / "build" / f"cmake-{VERSION}-{sys.implementation.cache_tag}"
        prefix = ROOT if self.inplace else Path(self.build_lib).resolve()
        # An environment's own cmake and ninja serve when it isn't activated, too.
        os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
        ninja = shutil.which("ninja")
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        options = [f"-DROCENANTE_PYTHON={sys.executable}", f"-DROCENANTE_TORCH={TORCH}"]
        options += os.environ.get("CMAKE_ARGS", "").split()
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        configure = ["-S", ROOT, "-B", build, *generator, *options]
        build_all = ["--build", build, "-j", jobs]
        install = ["--install", build, "--prefix", prefix]
        for step in (configure, build_all, install):
            if subprocess.call(["cmake", *step]):
                sys.exit("rocenante: the build failed; what CMake printed above says why")


setup(
    ext_modules=[Extension("rocenante._C", [])],
    cmdclass={"build_ext": CMakeBuild},
    # c10d's C++ interface holds within a minor release.
    install_requires=["torch=={}.{}.*".format(*VERSION.split(".")[:2])],
)
