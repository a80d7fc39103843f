"""Prepared steps: each is diagnosed as what it is, whatever sizes were drawn."""

import random
from pathlib import Path

import pytest

from pdtlib.observe.diagnosis import diagnose
from pdtlib.observe.prepared import write
from pdtlib.plan.faulty_steps import FAULTS, healthy
from pdtlib.plan.step_shares import shares


@pytest.mark.parametrize("cause", FAULTS)
def test_each_fault_is_found_first(cause: str, tmp_path: Path) -> None:
    for seed in range(20):
        step = FAULTS[cause](random.Random(seed))
        assert step.cause == cause
        write(tmp_path / str(seed), step)
        first, *_ = diagnose(tmp_path / str(seed))
        assert first.cause == cause
        assert first.cost > 0.15


def test_a_healthy_step_has_no_fault(tmp_path: Path) -> None:
    for seed in range(20):
        write(tmp_path / str(seed), healthy(random.Random(seed)))
        assert diagnose(tmp_path / str(seed)) == []


@pytest.mark.parametrize("make", [healthy, *FAULTS.values()])
def test_nothing_is_left_unexplained(make) -> None:  # type: ignore[no-untyped-def]
    """All ranks take the same time, and every moment of it has a span; nothing is computed while waiting."""
    for seed in range(5):
        step = make(random.Random(seed))
        ends = set()
        for spans in step.ranks.values():
            (whole,) = [span for span in spans if span.lane == "step"]
            ends.add(round(whole.end_s, 9))
            found = shares(spans, whole)
            assert found.other_s == pytest.approx(0, abs=1e-9)
        assert len(ends) == 1
