"""No run outlives its test."""

from collections.abc import Iterator

import pytest
from launching import Process


@pytest.fixture(autouse=True)
def no_run_is_left() -> Iterator[None]:
    """Whatever a test that failed has left running is ended after it."""
    yield
    while Process.started:
        Process.started.pop().kill_all()
