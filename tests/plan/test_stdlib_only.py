"""plan needs nothing but the standard library: it runs where torch and numpy cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# -S and -I: no site-packages at all; the finder makes an attempt to import more say so by name.
PROGRAM = """
import doctest, importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "typer", "rich", "plotly", "hypothesis", "pytest"}:
            raise ImportError(f"plan must not import {name}")

sys.meta_path.insert(0, Block())
sys.path.insert(0, sys.argv[1])
for name in ("torch", "numpy"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} could be imported")

import pdtlib.plan
tried = 0
names = [info.name for info in pkgutil.walk_packages(pdtlib.plan.__path__, "pdtlib.plan.")]
for name in names:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0, name
    tried += result.attempted
assert tried > 40, tried

from pdtlib.plan import params, presets, states
from pdtlib.plan.predict import predict
assert params.count(presets.model("llama3-70b")).total == 70_553_706_496
assert states.zero_state_bytes(70e9, dp=8, stage=1).total == 385e9
job = {"model": {"preset": "llama3-8b"}, "parallel": {"dp": 8}, "train": {"zero_stage": 3}}
assert predict(job)["params"]["total"] == 8_030_261_248
print(len(names), tried)
"""


def test_plan_runs_without_torch_and_numpy():
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", PROGRAM, str(ROOT)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    num_modules, _ = map(int, done.stdout.split())
    assert num_modules >= 15


@pytest.mark.parametrize("path", sorted((ROOT / "pdtlib" / "plan").rglob("*.py")), ids=lambda path: path.name)
def test_modules_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 320
