"""What the plan tests share."""

from __future__ import annotations

import pytest

from rocenante.plan.calibration import Calibration, calibrate
from rocenante.plan.published import Published, load_published


@pytest.fixture(scope="session")
def published() -> Published:
    return load_published()


@pytest.fixture(scope="session")
def calibration(published: Published) -> Calibration:
    return calibrate(published)
