"""Lab 09: workers that die, and workers that do not wait.

Part one trains a small model to its end, then again with a worker killed on the way: once with a restart on
as many workers, once going on with fewer. Part two trains it on nodes of their own, one of which loses its
power (where this machine can make a testbed). Weights, moments and the log of samples are compared with the
undisturbed run. Part three trains another small model synchronously, with local updates, and through a
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

import losing_a_node
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
from pdtlib.testbed import cluster

LAUNCH = "python labs/09_async_and_elastic/lab.py"
ASSIGNED = ("method_rows", "server_rows")

RANKS, FEWER = 3, 2
STEPS, SAVE_EVERY, KILLED_IN = 8, 3, 5
OPTIONS = ("--elastic", "--checkpoint-every", str(SAVE_EVERY))
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
WATCHDOG_S = 20.0
"""A node without power says nothing any more: who waits for its message must be told to stop."""
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


def undisturbed(folder: Path) -> tuple[Path, Path]:
    """The job, and the run that nothing happens to."""
    job, reference = folder / "job.toml", folder / "undisturbed"
    job.write_text(to_toml(from_dict(ELASTIC)), encoding="utf-8")
    code, words = trials.run_local(job, reference, *OPTIONS, ranks=RANKS, timeout_s=PATIENCE_S)
    if code:
        raise RuntimeError(f"the undisturbed run ended with {code}: {' '.join(words)}")
    return job, reference


def elastic(folder: Path, job: Path, reference: Path) -> list[dict[str, Any]]:
    """The two runs that lose a worker, compared with the undisturbed one."""
    listed = folder / "faults.json"
    faults.write(listed, [faults.Fault(kind="kill", rank=1, step=KILLED_IN)])
    struck = [*OPTIONS, "--faults", str(listed)]

    again = folder / "restarted"
    ended, _ = trials.run_local(job, again, *struck, ranks=RANKS, max_restarts=2, timeout_s=PATIENCE_S)
    title = f"restarted on {RANKS} workers"
    found = [_compared(title, again, reference, ended, killed=_killed(again), exact=True)]

    fewer = folder / "fewer"
    killed, _ = trials.run_local(job, fewer, *struck, ranks=RANKS, timeout_s=PATIENCE_S)
    if not killed:
        raise RuntimeError("the run was to be killed, and ended well")
    saved = last_checkpoint(fewer)
    ended, _ = trials.run_local(job, fewer, *OPTIONS, ranks=FEWER, timeout_s=PATIENCE_S)
    title = f"went on with {FEWER} workers"
    report = _compared(title, fewer, reference, ended, killed=_killed(fewer), exact=False)
    return [*found, {**report, "from": saved.name if saved else ""}]


def _killed(out: Path) -> int:
    return int((out / "faults" / "0").exists())


def node(folder: Path, job: Path, reference: Path) -> dict[str, Any]:
    """The run whose node is killed, compared with the undisturbed one; or why there is none."""
    reason = losing_a_node.reason_against()
    if reason:
        return {"possible": False, "reason": reason, "rows": []}
    out = folder / "node"
    options = [*OPTIONS, "--watchdog", str(WATCHDOG_S)]
    ended = losing_a_node.lose_one(job, out, *options, nodes=RANKS, at_step=KILLED_IN, timeout_s=PATIENCE_S)
    title = f"node {losing_a_node.NODE} of {RANKS} is killed, the others go on"
    report = _compared(title, out, reference, ended.code, killed=ended.down, exact=False)
    rows = [
        *report["rows"],
        Row(title, "workers in the last step", RANKS - 1, _workers(out, STEPS - 1)),
        Row(title, "processes left on the other nodes", 0, ended.left),
    ]
    return {**report, "possible": True, "reason": "", "rows": rows}


def _workers(out: Path, step: int) -> int:
    """On how many workers the log of samples has the step."""
    logs = [path.read_text(encoding="utf-8").splitlines() for path in (out / "samples").glob("rank-*.jsonl")]
    return sum(any(json.loads(line)["step"] == step for line in log) for log in logs)


def _compared(
    title: str, out: Path, reference: Path, code: int, *, killed: int, exact: bool
) -> dict[str, Any]:
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
        Row(title, "workers that the fault has killed", 1, killed),
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


def show_node(report: dict[str, Any]) -> None:
    print(f"\n{RANKS} nodes of one worker each, {cluster.rate_text(losing_a_node.LINK)} between them")
    if report["possible"]:
        print(*lines(report["rows"]), sep="\n")
    else:
        print(f"left out: this machine can't make a testbed: {report['reason']}")


def show_losses(untrained: float, reports: list[dict[str, Any]]) -> None:
    print(f"\nloss on held-out text after {UPDATES} steps or updates (untrained {untrained:.5f})")
    for report in reports:
        print(f"  {report['title']:42s} {report['held_out_loss']:.5f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("elastic", "node", "async", "all"), default="all")
    parser.add_argument("--json", type=Path, help="write predicted, measured and error to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    report: dict[str, Any] = {"lab": "09", "ranks": RANKS, "fewer": FEWER, "killed_in": KILLED_IN}
    if options.part != "async":
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            given = undisturbed(folder)
            runs = elastic(folder, *given) if options.part != "node" else []
            lost = node(folder, *given) if options.part != "elastic" else None
        print(
            f"{RANKS} workers, {STEPS} steps, a checkpoint every {SAVE_EVERY}; "
            f"worker 1 is killed in step {KILLED_IN}"
        )
        for each in runs:
            rows += each["rows"]
            print(*lines(each["rows"]), sep="\n")
        report["elastic"] = [{**each, "rows": [row.report() for row in each["rows"]]} for each in runs]
        if lost is not None:
            rows += lost["rows"]
            show_node(lost)
            report["node"] = {**lost, "rows": [row.report() for row in lost["rows"]]}
    if options.part in ("async", "all"):
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
