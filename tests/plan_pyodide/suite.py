"""Run by Pyodide: tests/plan on what the wheel holds. The value of the last line is pytest's exit status."""

# ruff: noqa: E402
import os
import sys
import time

sys.path[:0] = ["/site", "/packages"]
sys.dont_write_bytecode = True
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest

import pdtlib
from pdtlib.plan.predict import predict

assert pdtlib.__file__.startswith("/site/")


def typical_prediction_ms() -> float:
    """The median time of a prediction of a new job, in milliseconds."""
    took = []
    for batch in range(128, 128 * 12, 128):
        job = {
            "model": {"preset": "llama3-405b"},
            "train": {"global_batch": batch},
            "parallel": {"tp": 8, "pp": 16, "dp": 8},
        }
        start = time.perf_counter()
        predict(job)
        took.append(1e3 * (time.perf_counter() - start))
    return sorted(took)[len(took) // 2]


print(f"a prediction in Pyodide: {typical_prediction_ms():.0f} ms", flush=True)
fixed = ["-c", "/dev/null", "--rootdir=/tests/plan", "--noconftest", "-p", "no:cacheprovider"]
int(pytest.main([*fixed, "-p", "_hypothesis_pytestplugin", *ARGUMENTS]))  # noqa: F821
