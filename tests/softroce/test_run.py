"""``run`` itself: what it promises of exit codes, output, limits, faults and cleaning up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from testbed.bed import HERE, Bed, Layout
from testbed.host import BedError, Need, require

RUN = HERE / "run"
ONE = Layout(timeout=60)
TWO = Layout(nodes=2, timeout=60)


class Trail:
    """Finds what runs of one test left, among the runs of others on this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mark = f"SOFTROCE_TRAIL={uuid.uuid4()}"
        monkeypatch.setenv(*self._mark.split("="))
        self.options = ["--env", "SOFTROCE_TRAIL"]

    def processes(self) -> set[str]:
        """The command lines of the host's processes that were started with the mark."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = self._mark.encode() in (process / "environ").read_bytes().split(b"\0")
                if marked:
                    found.add((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def folders(self) -> set[str]:
        """Folders of runs whose command has the mark."""
        name, _, value = self._mark.partition("=")
        found = set()
        for file in Path("/dev/shm").glob("rocenante-softroce.*/node0/env"):
            with contextlib.suppress(OSError):
                if f"export {name}={value}\n" in file.read_text():
                    found.add(str(file.parent.parent))
        return found

    def left(self, limit_s: float = 10.0) -> set[str]:
        """What is still there after the limit; ends early once nothing is."""
        deadline = time.monotonic() + limit_s
        while (self.processes() or self.folders()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes() | self.folders()


@pytest.fixture
def trail(monkeypatch: pytest.MonkeyPatch) -> Trail:
    """Marks all runs of the test."""
    return Trail(monkeypatch)


def test_exit_code_and_output_come_back(bed: Bed) -> None:
    """The two output streams stay apart and unchanged, also when long."""
    script = "seq 1 20000; echo wrong >&2; printf end; exit 37"
    done = bed.run(["bash", "-c", script], ONE)
    assert done.returncode == 37
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 20001)) + "end"
    assert done.stderr == "wrong\n"


def test_arguments_and_variables_arrive_unchanged(bed: Bed) -> None:
    """Words with blanks, quotes, dollars and line breaks are passed as they are."""
    words = ["a b", "it's", '"$HOME"', "line\nbreak", ""]
    script = "import os, sys; print(repr((sys.argv[1:], os.environ['X'])))"
    done = bed.run([sys.executable, "-c", script, *words], ONE, options=["--env", "X=1 $2 '"])
    assert done.stdout.strip() == repr((words, "1 $2 '"))


def test_only_writable_folders_keep_what_is_written(bed: Bed, tmp_path: Path) -> None:
    """Elsewhere the guest writes to its own memory."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    script = f"cd /; echo 1 >{inside}/file; mkdir -p {outside}; echo 2 >{outside}/file"
    done = bed.run(["bash", "-c", f"{script}; cat {outside}/file"], ONE, options=["--rw", inside])
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert (inside / "file").read_text() == "1\n"
    assert not (outside / "file").exists()


def test_time_limit(bed: Bed, trail: Trail) -> None:
    """A command that does not end is ended, with exit code 124, and nothing is left."""
    start = time.monotonic()
    done = bed.run(["sleep", "600"], Layout(timeout=5), options=trail.options)
    assert done.returncode == 124
    assert "did not end within 5 s" in done.stderr
    assert 5 <= time.monotonic() - start < 30
    assert trail.left() == set()


def test_guest_that_dies(bed: Bed, trail: Trail) -> None:
    """A guest whose kernel crashes under the command gives 125 and the end of its log."""
    script = "echo c >/proc/sysrq-trigger; sleep 60"
    done = bed.run(["bash", "-c", script], ONE, options=trail.options)
    assert done.returncode == 125
    assert "node 0 died" in done.stderr
    assert "sysrq" in done.stderr.lower()
    assert trail.left() == set()


def test_wrong_netem_is_told(bed: Bed) -> None:
    """A specification that tc rejects is not taken for the command's failure."""
    done = bed.run(["true"], Layout(netem="nonsense 1", timeout=60))
    assert done.returncode == 125
    assert "tc rejects --netem nonsense 1" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--nodes", "0", "--", "true"], ["--mtu", "x", "--", "true"], ["--env", "1=2", "true"]],
)
def test_wrong_command_line(arguments: list[str]) -> None:
    """Exit code 2 before anything is started."""
    done = subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_missing_package_is_named() -> None:
    """What is missing is said as one command."""
    with pytest.raises(BedError, match=r"apt-get install .* bc-that-is-missing$"):
        require([Need("bc-that-is-missing", commands=("no-such-program",))], "the test")


def test_nodes_see_each_other(bed: Bed) -> None:
    """Each node runs the command, marks its lines, and stays until all are through."""
    script = """
import os, socket, time
node = int(os.environ["SOFTROCE_NODE"])
time.sleep(node)
try:
    socket.create_connection((f"softroce{1 - node}", 9), timeout=20)
except ConnectionRefusedError:  # nobody listens, but the other kernel has answered
    print(node, "reached", 1 - node)
"""
    done = bed.run([sys.executable, "-S", "-c", script], TWO)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 reached 1", "[1] 1 reached 0"]


def test_first_failing_node_gives_the_exit_code(bed: Bed) -> None:
    """All nodes run to their end."""
    script = "sleep 0.$SOFTROCE_NODE; exit $((SOFTROCE_NODE * 7))"
    assert bed.run(["bash", "-c", script], Layout(nodes=3, timeout=60)).returncode == 7


def test_kill_node(bed: Bed, trail: Trail, tmp_path: Path) -> None:
    """A killed node is gone at once, without a farewell; the others go on and decide the code."""
    script = f"""
    if [ $SOFTROCE_NODE = 1 ]; then
      trap 'echo farewell' EXIT
      while sleep 0.02; do date +%s.%N >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/alive; done
    fi
    until [ -e {tmp_path}/alive ]; do sleep 0.02; done
    kill-node 1 || exit 3
    first=$(cat {tmp_path}/alive); sleep 0.5
    [ "$first" = "$(cat {tmp_path}/alive)" ] || exit 4
    echo survived; exit 5
    """
    done = bed.run(["bash", "-c", script], TWO, options=["--rw", tmp_path, *trail.options])
    assert (done.returncode, done.stdout) == (5, "[0] survived\n"), done.stderr
    assert trail.left() == set()


def test_stop_and_continue_node(bed: Bed, tmp_path: Path) -> None:
    """A stopped node freezes whole and goes on afterwards."""
    script = f"""
    if [ $SOFTROCE_NODE = 1 ]; then
      for ((i = 0; ; i++)); do
        [ -e {tmp_path}/end ] && exit 0
        echo $i >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/count; sleep 0.02
      done
    fi
    until [ -e {tmp_path}/count ]; do sleep 0.02; done
    kill-node --signal STOP 1 || exit 3
    first=$(cat {tmp_path}/count); sleep 0.5
    [ "$first" = "$(cat {tmp_path}/count)" ] || exit 4
    kill-node --signal CONT 1 || exit 5
    for ((i = 0; i < 500; i++)); do
      [ "$first" != "$(cat {tmp_path}/count)" ] && {{ touch {tmp_path}/end; exit 0; }}
      sleep 0.02
    done
    exit 6
    """
    done = bed.run(["bash", "-c", script], TWO, options=["--rw", tmp_path])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_by_a_launcher_that_is_ended(
    bed: Bed, trail: Trail, tmp_path: Path, number: signal.Signals
) -> None:
    """However the launcher ends, its guests end; what SIGKILL leaves, the next run sweeps."""
    script = f"touch {tmp_path}/up.$SOFTROCE_NODE; sleep 600"
    launcher = subprocess.Popen(
        [RUN, "--nodes", "2", "--rw", tmp_path, *trail.options, "--", "bash", "-c", script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"up.{node}").exists() for node in (0, 1)):
            assert launcher.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(trail.processes()) >= 4  # launcher, switch, two guests
        assert len(trail.folders()) == 1
        os.kill(launcher.pid, number)
        code = launcher.wait(timeout=30)
    finally:
        launcher.kill()
        launcher.wait()
    if number == signal.SIGKILL:
        assert code == -number
        deadline = time.monotonic() + 10
        while trail.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert trail.processes() == set()
        assert bed.run(["true"], ONE).returncode == 0
    else:
        assert code == 128 + number
    assert trail.left() == set()
