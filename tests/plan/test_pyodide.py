"""plan in the browser: Pyodide under Node runs every example and gives this interpreter's numbers."""

import json
import subprocess
from pathlib import Path

from pdtlib.book.vendor import node, pyodide_dir
from pdtlib.explore import bundle
from pdtlib.plan.job import from_dict
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict

SCRIPT = Path(__file__).with_name("pyodide_plan.mjs")
JOBS = [
    {
        "model": {"preset": "llama3-405b"},
        "train": {"global_batch": 128},
        "parallel": {"tp": 8, "pp": 16, "dp": 8},
    },
    {
        "model": {"preset": "mixtral-8x7b"},
        "train": {"global_batch": 64, "zero_stage": 3},
        "parallel": {"dp": 16, "ep": 8},
        "hardware": {"cluster": "dgx-h100"},
    },
    {"model": {"preset": "gpt2"}, "parallel": {"tp": 5}, "train": {"zero": 1}},
]

PROGRAM = """
import doctest, importlib, json, pkgutil, time
import pdtlib.plan
from pdtlib.plan.job import from_dict
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict

failed = {}
for info in pkgutil.walk_packages(pdtlib.plan.__path__, "pdtlib.plan."):
    result = doctest.testmod(importlib.import_module(info.name))
    if result.failed:
        failed[info.name] = result.failed
jobs = json.loads(JOBS)
predictions = [predict(job) for job in jobs]
start = time.perf_counter()
predict({**jobs[0], "train": {"global_batch": 256}})
took = time.perf_counter() - start
best = plan(from_dict(jobs[1]), num_gpus=16, top=1).plans[0]
report = json.dumps([failed, predictions, best.time.step_s, took], sort_keys=True)
"""


def test_plan_in_pyodide(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"JOBS = {json.dumps(JOBS)!r}\n{PROGRAM}")
    archive = bundle.write_zip(tmp_path / "pdtlib.zip")
    done = subprocess.run(
        [node(), SCRIPT, pyodide_dir(), archive, program], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    failed, predictions, best, took = json.loads(done.stdout.splitlines()[-1])
    assert failed == {}
    assert predictions == json.loads(json.dumps([predict(job) for job in JOBS]))
    assert best == plan(from_dict(JOBS[1]), num_gpus=16, top=1).plans[0].time.step_s
    assert took < 1.0  # 150 ms on an idle machine
