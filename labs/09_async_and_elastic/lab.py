"""Lab 09: workers that die, and workers that do not wait.

Part one trains a small model to its end, then again with a worker killed on the way: once with a restart on
as many workers, once going on with half of them. Weights, moments and the log of samples are compared with
the undisturbed run. Part two trains another small model synchronously, with local updates, and through a
parameter server with and without a bound on staleness; staleness and bytes are compared with what theory
says. The lab exits with 1 if something that must be exact is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pdtlib.book.measured import Row, lines
from pdtlib.engine.dist import spawn
from pdtlib.engine.training.run_dir import last_checkpoint
from pdtlib.plan.job import from_dict, to_toml
from pdtlib.plan.params import count
from pdtlib.plan.reliability import local_updates
from pdtlib.resilience import faults, trials
from pdtlib.resilience.asynchronous import local, server
from pdtlib.resilience.asynchronous.task import Task
from pdtlib.resilience.samples import trained

LAUNCH = "python labs/09_async_and_elastic/lab.py"
ASSIGNED = ("method_rows", "server_rows")

RANKS, FEWER = 3, 2
STEPS, SAVE_EVERY, KILLED_IN = 8, 3, 5
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "seq": 32}
ELASTIC = {
    "model": MODEL,
    "train": {
        "global_batch": 12,
        "micro_batch": 2,
        "precision": "fp32",
        "zero_stage": 1,
        "learning_rate": 1e-3,
        "steps": STEPS,
    },
    "parallel": {"dp": RANKS},
}
APART = {
    "model": {**MODEL, "layers": 1},
    "train": {
        "global_batch": 8,
        "micro_batch": 1,
        "precision": "fp32",
        "learning_rate": 3e-3,
        "clip_grad_norm": 1.0,
    },
}
WORKERS, SERVED, UPDATES, EVERY = 4, 3, 40, 10
SLOW_S = 0.1
PATIENCE_S = 600.0
BOUNDS = (None, 2, 0)
METHODS = (("synchronous", 1), ("local-sgd", EVERY), ("diloco", EVERY))
TITLES = {
    "synchronous": "synchronous",
    "local-sgd": f"local SGD, a meeting every {EVERY} steps",
    "diloco": f"DiLoCo, a meeting every {EVERY} steps",
    None: "parameter server, no bound",
    2: "parameter server, at most 2 ahead",
    0: "parameter server, in step",
}


def elastic(folder: Path) -> list[dict[str, Any]]:
    """The undisturbed run, and the two that lose a worker, compared with it."""
    job = folder / "job.toml"
    job.write_text(to_toml(from_dict(ELASTIC)), encoding="utf-8")
    options = ["--elastic", "--checkpoint-every", str(SAVE_EVERY)]
    reference = folder / "undisturbed"
    code, words = trials.run_local(job, reference, *options, ranks=RANKS, timeout_s=PATIENCE_S)
    if code:
        raise RuntimeError(f"the undisturbed run ended with {code}: {' '.join(words)}")
    listed = folder / "faults.json"
    faults.write(listed, [faults.Fault(kind="kill", rank=1, step=KILLED_IN)])
    struck = [*options, "--faults", str(listed)]

    again = folder / "restarted"
    ended, _ = trials.run_local(job, again, *struck, ranks=RANKS, max_restarts=2, timeout_s=PATIENCE_S)
    found = [_compared(f"restarted on {RANKS} workers", again, reference, ended, exact=True)]

    fewer = folder / "fewer"
    killed, _ = trials.run_local(job, fewer, *struck, ranks=RANKS, timeout_s=PATIENCE_S)
    if not killed:
        raise RuntimeError("the run was to be killed, and ended well")
    saved = last_checkpoint(fewer)
    ended, _ = trials.run_local(job, fewer, *options, ranks=FEWER, timeout_s=PATIENCE_S)
    report = _compared(f"went on with {FEWER} workers", fewer, reference, ended, exact=False)
    return [*found, {**report, "from": saved.name if saved else ""}]


def _compared(title: str, out: Path, reference: Path, code: int, *, exact: bool) -> dict[str, Any]:
    tolerance = 0.0 if exact else trials.TOLERANCE
    pair = last_checkpoint(out), last_checkpoint(reference)
    difference = trials.largest_difference(*pair) if None not in pair else float("inf")  # type: ignore[arg-type]
    seen, expected = trained(out), trained(reference)
    samples = Counter(window for windows in seen.values() for window in windows)
    wanted = Counter(window for windows in expected.values() for window in windows)
    rows = [
        Row(title, "exit code", 0, code),
        Row(title, "steps in the log of samples", STEPS, len(seen)),
        Row(title, "samples lost", 0, (wanted - samples).total()),
        Row(title, "samples seen once too often", 0, (samples - wanted).total()),
        Row(title, "workers that the fault has killed", 1, int((out / "faults" / "0").exists())),
        Row(title, "weights and moments, largest difference", 0, difference, tolerance),
    ]
    return {"title": title, "rows": rows}


def apart() -> dict[str, Any]:
    """On each rank: synchronous training, local updates, and then a server under each bound.

    Under a server rank 0 holds the weights, and the last of the others is slow. Rank 0's word counts.
    """
    job = from_dict({**APART, "parallel": {"dp": WORKERS}})
    methods = [
        (method, asdict(local.train(job, method=method, steps=UPDATES, every=every)))
        for method, every in METHODS
    ]
    alone = from_dict(APART)
    served = []
    for bound in BOUNDS:
        result = server.train(alone, updates=UPDATES, bound=bound, slow_s=(0.0, 0.0, SLOW_S))
        if result is not None:
            served.append((bound, asdict(result)))
        dist.barrier()
    return {"untrained": Task(alone).held_out_loss(), "methods": methods, "served": served}


def method_rows(method: str, met: dict[str, Any]) -> list[Row]:
    title = TITLES[method]
    parameters = count(from_dict(APART).model).total
    planned = local_updates(parameters, workers=WORKERS, every=dict(METHODS)[method])
    return [Row(title, "bytes sent per step", planned.per_step_bytes, met["sent_bytes_per_step"], 1e-3)]


def server_rows(bound: int | None, result: dict[str, Any]) -> list[Row]:
    """Every gradient counts once; under a bound none is older, and nobody further ahead, than it allows."""
    title = TITLES[bound]
    rows = [Row(title, "gradients applied", UPDATES, len(result["staleness"]))]
    if bound is not None:
        limit = server.stale_limit(workers=SERVED, bound=bound)
        older = sum(staleness > limit for staleness in result["staleness"])
        further = sum(spread > bound + 1 for spread in result["spread"])
        rows += [
            Row(title, f"gradients more than {limit} updates old", 0, older),
            Row(title, f"moments with a worker more than {bound + 1} ahead", 0, further),
        ]
    return rows


def show_losses(untrained: float, reports: list[dict[str, Any]]) -> None:
    print(f"\nloss on held-out text after {UPDATES} steps or updates (untrained {untrained:.5f})")
    for report in reports:
        print(f"  {report['title']:42s} {report['held_out_loss']:.5f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("elastic", "async", "both"), default="both")
    parser.add_argument("--json", type=Path, help="write predicted, measured and error to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    report: dict[str, Any] = {"lab": "09", "ranks": RANKS, "fewer": FEWER, "killed_in": KILLED_IN}
    if options.part != "async":
        with tempfile.TemporaryDirectory() as scratch:
            runs = elastic(Path(scratch))
        print(
            f"{RANKS} workers, {STEPS} steps, a checkpoint every {SAVE_EVERY}; "
            f"worker 1 is killed in step {KILLED_IN}"
        )
        for each in runs:
            rows += each["rows"]
            print(*lines(each["rows"]), sep="\n")
        report["elastic"] = [{**each, "rows": [row.report() for row in each["rows"]]} for each in runs]
    if options.part != "elastic":
        found = spawn(apart, WORKERS, timeout_s=PATIENCE_S)[0]
        reports = [
            *(
                {"title": TITLES[method], "rows": method_rows(method, met), **met}
                for method, met in found["methods"]
            ),
            *(
                {"title": TITLES[bound], "rows": server_rows(bound, result), **result}
                for bound, result in found["served"]
            ),
        ]
        print(
            f"\n{WORKERS} workers, {UPDATES} steps; under a server {SERVED} workers, {UPDATES} updates, "
            "and the last worker sleeps before each gradient"
        )
        for each in reports:
            rows += each["rows"]
            print(*lines(each["rows"]), sep="\n")
        show_losses(found["untrained"], reports)
        report |= {
            "untrained": found["untrained"],
            "apart": [{**each, "rows": [row.report() for row in each["rows"]]} for each in reports],
            "workers": WORKERS,
            "served": SERVED,
            "updates": UPDATES,
            "slow_s": SLOW_S,
        }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    right = all(row.right for row in rows)
    print(
        "every sample once, every gradient and byte as predicted" if right else "NOT as predicted: see above"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
