"""What the doctor's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import Machine, spark


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return spark(tmp_path)
