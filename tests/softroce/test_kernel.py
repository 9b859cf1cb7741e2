"""The kernel's build and cache, with a tiny source in the place of Linux."""

from __future__ import annotations

import tarfile
import threading
from pathlib import Path

import pytest
from testbed import kernel
from testbed.host import BedError

_MAKEFILE = """
tinyconfig: ; echo CONFIG_BASE=y > .config
olddefconfig: ; grep -v LOST .config > new; mv new .config
linux:
\techo '  CC      main.o'
\techo x >> {count}
\tsleep 0.3
\tprintf 'int main(void) {{ return 0; }}' | gcc -x c - -o linux
"""
_MERGE = "#!/bin/sh\ncat $3 >> $2\n"
_PATCH = "--- a/greeting\n+++ b/greeting\n@@ -1 +1 @@\n-before\n+after\n"


class Source:
    """A source archive whose makefile counts the builds."""

    def __init__(self, folder: Path) -> None:
        self.count = folder / "count"
        self.archive = folder / "source.tar"
        self.config = folder / "config"
        tree = folder / kernel.SOURCE_PACKAGE
        (tree / "scripts" / "kconfig").mkdir(parents=True)
        merge = tree / "scripts" / "kconfig" / "merge_config.sh"
        merge.write_text(_MERGE)
        merge.chmod(0o755)
        (tree / "greeting").write_text("before\n")
        (tree / "Makefile").write_text(_MAKEFILE.format(count=self.count))
        with tarfile.open(self.archive, "w") as tar:
            tar.add(tree, kernel.SOURCE_PACKAGE)
        self.config.write_text("CONFIG_WANTED=y\n")

    def builds(self) -> int:
        """How often the kernel has been built."""
        return len(self.count.read_text()) // 2 if self.count.exists() else 0


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The tiny source, and an empty cache."""
    tiny = Source(tmp_path)
    (tmp_path / "patch").write_text(_PATCH)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel, "NEEDS_BUILD", ())
    monkeypatch.setattr(kernel, "_PATCH", tmp_path / "patch")
    monkeypatch.setattr(kernel, "_CONFIG", tiny.config)
    monkeypatch.setattr(kernel, "_source", lambda work: ("6.12.1-1", tiny.archive))
    return tiny


def _left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache" / "rocenante").iterdir())


def test_is_built_once(source: Source, tmp_path: Path) -> None:
    """The second call finds the first one's kernel; only it is left in the cache."""
    assert kernel.cached() is None
    first = kernel.ensure()
    assert first.is_file()
    assert first.parent.name == f"uml-6.12.1-1-{kernel.recipe_hash()}"
    assert kernel.ensure() == first
    assert source.builds() == 1
    assert _left(tmp_path) == [first.parent.name, "uml.lock"]


def test_other_configuration_is_another_kernel(source: Source) -> None:
    """A change of what shapes the kernel does not find the old one."""
    first = kernel.ensure()
    source.config.write_text("CONFIG_WANTED=y\nCONFIG_MORE=y\n")
    assert kernel.ensure() != first
    assert source.builds() == 2


def test_two_at_once_build_once(source: Source) -> None:
    """The later one waits for the earlier one and takes its kernel."""
    threads = [threading.Thread(target=kernel.ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kernel.cached() is not None
    assert source.builds() == 1


def test_option_that_the_source_drops_is_named(source: Source, tmp_path: Path) -> None:
    """A kernel without what was asked for is not built."""
    source.config.write_text("CONFIG_WANTED=y\nCONFIG_LOST=y\n")
    with pytest.raises(BedError, match="drops CONFIG_LOST=y"):
        kernel.ensure()
    assert source.builds() == 0
    assert kernel.cached() is None


def test_failing_build_tells_its_end_and_leaves_nothing_but_the_log(
    source: Source, tmp_path: Path
) -> None:
    """The message has the failing step, the log's end and the log's place."""
    (tmp_path / "patch").write_text(_PATCH.replace("before", "something else"))
    with pytest.raises(BedError, match=r"(?s)exit status 1.*patch -p1.*uml-build.log.*FAILED"):
        kernel.ensure()
    assert kernel.cached() is None
    assert _left(tmp_path) == ["uml-build.log", "uml.lock"]
