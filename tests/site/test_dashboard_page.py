"""The dashboard on its page: a reader's files are opened in the browser, and others are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pdtlib.explore import dashboard
from pdtlib.observe.trace import perfetto
from pdtlib.plan.faulty_steps import bubble

PAGE = "chapters/08_efficiency.html"


def test_files_are_read_in_the_browser(visit: Any, tmp_path: Path) -> None:
    page = visit.open(PAGE)
    root = page.locator("[data-dashboard]")
    assert root.locator("[data-summary]").inner_text() == dashboard.example().summary
    trace, metrics = json.dumps(perfetto(bubble(random.Random(1)).ranks)), '{"mfu": 0.2}\n{"mfu": 0.25}\n'
    (tmp_path / "trace.json").write_text(trace)
    (tmp_path / "metrics.jsonl").write_text(metrics)
    root.locator("[name=metrics]").set_input_files(tmp_path / "metrics.jsonl")
    root.locator("[name=trace]").set_input_files(tmp_path / "trace.json")
    page.wait_for_selector("[data-dashboard][data-state=live]")
    expected = dashboard.of_files(trace, metrics)
    assert root.locator("[data-summary]").inner_text() == expected["summary"]
    for readout in expected["readouts"]:
        shown = root.locator(f'[data-readout="{readout["name"]}"] .pdt-number').inner_text()
        assert shown.endswith(readout["text"])


def test_another_file_is_refused_with_a_reason(visit: Any, tmp_path: Path) -> None:
    page = visit.open(PAGE)
    root = page.locator("[data-dashboard]")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    root.locator("[name=trace]").set_input_files(tmp_path / "trace.json")
    page.wait_for_selector("[data-dashboard][data-state=error]")
    assert "no spans" in root.locator("[data-problem]").inner_text()
