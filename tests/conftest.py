"""Note each test's outcome for the page "How this book is checked"."""

import json
import os
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "_build" / "test-results.json"
ORDER = ("passed", "skipped", "failed")


class Results:
    """Collects outcomes and adds them to those of the suites that ran before."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(known, report.outcome, key=ORDER.index)

    def pytest_sessionfinish(self) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        fresh = RESULTS.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({**before, **self.outcomes}, indent=0, sort_keys=True), encoding="utf-8")
        fresh.replace(RESULTS)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(), "pdtlib-results")
