"""A pytest plugin that runs tests with the marker ``softroce`` in Soft-RoCE guests.

Outside, each of them is collected as usual and then replaced by an item that stands for its run in
a guest: the first one that is due boots a guest of the layout that its marker asks for, and runs
all selected tests of that layout in it. Inside a guest they are ordinary tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from testbed import outcome
from testbed.bed import HERE, Bed, Layout
from testbed.host import is_x86_64

_IN_GUEST = "SOFTROCE_NODE" in os.environ
_TAIL = 4000
_verdict_key = pytest.StashKey[outcome.Verdict]()
_boots_key = pytest.StashKey["_Boots"]()


class _Boots:
    """Prepares the test-bed once a session and boots each layout once."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._unusable: str | None = None
        self._prepared = False
        self._told: dict[Layout, tuple[list[dict[str, list[outcome.Phase]]], str]] = {}
        self.tests: dict[Layout, list[str]] = {}

    def bed(self) -> Bed:
        """The test-bed; fails the test if it cannot be had, skips it where it never can."""
        if not is_x86_64():
            pytest.skip("the guests of the Soft-RoCE test-bed need an x86-64 machine")
        if not self._prepared:
            self._prepared = True
            capture: Any = self._config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled():  # a first build takes minutes: show it
                said, code = _prepare()
            if code:
                self._unusable = f"tests/softroce/prepare failed (exit code {code}):\n{said}"
        if self._unusable is not None:
            pytest.fail(self._unusable, pytrace=False)
        return Bed()

    def verdict(self, layout: Layout, test: str) -> outcome.Verdict:
        """How a test went in the guest, booting it first if this is its layout's first test."""
        if layout not in self._told:
            self._told[layout] = self._boot(layout)
        told, missing = self._told[layout]
        return outcome.judge(test, told, missing)

    def _boot(self, layout: Layout) -> tuple[list[dict[str, list[outcome.Phase]]], str]:
        bed = self.bed()
        reports = Path(tempfile.mkdtemp(prefix="softroce-reports."))
        pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest_command += ["--rootdir", str(self._config.rootpath), *self.tests[layout]]
        variable = f"{outcome.FOLDER_VARIABLE}={reports}"
        try:
            done = bed.run(
                pytest_command,
                layout,
                options=["--rw", reports, "--env", variable],
                directory=self._config.rootpath,
            )
            told = outcome.read(reports, layout.nodes)
        finally:
            shutil.rmtree(reports)
        end = f"{done.stdout[-_TAIL:]}\n{done.stderr[-_TAIL:]}".strip()
        return told, f"The run in the guest ended with exit code {done.returncode}:\n{end}"


def _prepare() -> tuple[str, int]:
    """Runs ``prepare``, passing on what it says; returns the end of that and the exit code."""
    child = subprocess.Popen(
        [str(HERE / "prepare")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    said = ""
    with child:
        assert child.stderr is not None
        for line in child.stderr:
            sys.stderr.write(f"\n{line}" if not said else line)
            sys.stderr.flush()
            said += line
    return said[-_TAIL:], child.returncode


class GuestFailureError(Exception):
    """A test failed in the guest; the text is its report there."""


class GuestItem(pytest.Item):
    """Stands outside for a test that runs in a guest."""

    def __init__(self, *, layout: Layout, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layout = layout

    def runtest(self) -> None:
        """Takes over how the test went in the guest."""
        verdict = self.config.stash[_boots_key].verdict(self.layout, self.nodeid)
        self.stash[_verdict_key] = verdict
        for title, text in verdict.output:
            self.add_report_section("call", title, text)
        if verdict.outcome == "failed":
            raise GuestFailureError(verdict.text)
        if verdict.outcome == "skipped":
            pytest.skip(verdict.text)
        if verdict.outcome == "xfailed":
            pytest.xfail(verdict.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The guest's own report instead of a trace of this class."""
        if isinstance(excinfo.value, GuestFailureError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is: for the report's heading."""
        return self.path, None, self.name


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest of the marker."""
    config.addinivalue_line(
        "markers",
        "softroce(nodes=1, devices=2, netem='', mtu=4200, timeout=300): "
        "run the test in guests with Soft-RoCE, of this layout",
    )
    config.stash[_boots_key] = _Boots(config)


@pytest.hookimpl(trylast=True)  # after the deselection by -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Outside, puts a GuestItem in the place of each test with the marker."""
    if _IN_GUEST:
        return
    boots = config.stash[_boots_key]
    for at, item in enumerate(items):
        markers = list(item.iter_markers("softroce"))
        if not markers:
            continue
        wishes: dict[str, Any] = {}
        for marker in reversed(markers):  # the closest one last
            wishes.update(marker.kwargs)
        layout = Layout(**wishes)
        assert item.parent is not None
        stand_in: GuestItem = GuestItem.from_parent(item.parent, name=item.name, layout=layout)
        items[at] = stand_in
        boots.tests.setdefault(layout, []).append(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the time that a test took in the guest, not that of the boot."""
    report = yield
    if call.when == "call" and _verdict_key in item.stash:
        report.duration = item.stash[_verdict_key].seconds
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In a guest, writes each report down for the pytest outside."""
    folder = os.environ.get(outcome.FOLDER_VARIABLE)
    if not _IN_GUEST or not folder:
        return
    text = report.longreprtext
    if report.skipped and isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    xfail = hasattr(report, "wasxfail")
    phase = outcome.Phase(
        test=report.nodeid,
        when=report.when or "",
        outcome=report.outcome,
        text=getattr(report, "wasxfail", "") if xfail else text,
        seconds=report.duration,
        xfail=xfail,
        output=tuple(report.sections) if report.when == "teardown" else (),
    )
    outcome.append(Path(folder), int(os.environ["SOFTROCE_NODE"]), phase)


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest) -> Bed:
    """The test-bed for tests on the host that start guests themselves."""
    return request.config.stash[_boots_key].bed()
