"""Seeded faults in real runs: every one must end with the uninterrupted run's weights and sample log.

    python benchmarks/faults.py                    50 runs, into benchmarks/results/faults.json
    python benchmarks/faults.py --seeds 3 7        two of them again; the report keeps the others

A seed decides what happens, to whom and in which step. Faults of a process happen on two ranks under
torchrun's elastic agent; a lost node and a cut link need a testbed (root or user namespaces) of two nodes.
The report is written anew after each run, so what an interrupted benchmark has found is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pdtlib.resilience import faults, trials
from pdtlib.testbed import cluster, namespaces

STEPS, SAVE_EVERY, RANKS = 12, 4, 2
JOB = f"""
[model]
layers = 2
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
global_batch = 8
micro_batch = 2
precision = "fp32"
learning_rate = 1e-3
steps = {STEPS}
zero_stage = %d
[parallel]
dp = {RANKS}
"""
LOCAL = ("kill", "stop", "damage", "index", "saving", "disk", "flip")
NODES = ("node", "node-returns", "link")
WATCHDOG_S = 6.0
LINK = "5mbit"


def plan(seed: int, *, testbed: bool) -> dict[str, Any]:
    """What happens in run ``seed``: one in four is a fault of a node or a link, where there is a testbed."""
    random_ = random.Random(f"plan:{seed}")
    if testbed and seed % 4 == 3:
        return {
            "fault": NODES[seed // 4 % len(NODES)],
            "step": random_.randrange(2, 8),
            "rank": random_.randrange(RANKS),
            "stage": 0,
        }
    fault = faults.draw(seed, kinds=LOCAL, ranks=RANKS, steps=STEPS, save_every=SAVE_EVERY)
    # ZeRO deals gradients out, so only plain replicas can find a flipped bit.
    stage = 0 if fault.kind == "flip" else random_.choice((0, 1, 2, 3))
    return {"fault": fault.kind, "rank": fault.rank, "step": fault.step, "stage": stage}


def one(seed: int, folder: Path, *, testbed: bool) -> dict[str, Any]:
    """Run ``seed`` and return its row."""
    planned = plan(seed, testbed=testbed)
    random_ = random.Random(f"options:{seed}")
    memory = random_.choice((0, 2))
    job = folder / f"stage{planned['stage']}.toml"
    reference = folder / f"reference{planned['stage']}"
    options = ["--elastic", "--watchdog", str(WATCHDOG_S), "--checkpoint-every", str(SAVE_EVERY)]
    if not job.exists():
        job.write_text(JOB % planned["stage"], encoding="utf-8")
        code, words = trials.run_local(job, reference, *options, ranks=RANKS)
        if code:
            raise RuntimeError(f"the uninterrupted run failed with {code}: {words}")
    out = folder / f"run{seed}"
    options += ["--memory-every", str(memory)]
    began = time.monotonic()
    if planned["fault"] in NODES:
        code, words, left = on_testbed(planned, job, out, options, name=f"faults-{seed}")
    else:
        keys = {key: planned[key] for key in ("rank", "step")}
        listed = folder / f"faults{seed}.json"
        faults.write(listed, [faults.Fault(kind=planned["fault"], **keys)])
        options += ["--faults", str(listed)]
        code, words = trials.run_local(job, out, *options, ranks=RANKS, max_restarts=6, timeout_s=150)
        left = trials.ranks_left()
    outcome = trials.judge(
        out,
        reference,
        code=code,
        words=words,
        seconds=time.monotonic() - began,
        left=left,
        exact=planned["fault"] not in NODES,
    )
    row = {"seed": seed, **planned, "memory_every": memory, **asdict(outcome)}
    row["words"] = [word.replace(str(folder), "FOLDER") for word in outcome.words if "rank " in word][:3]
    return row


def on_testbed(
    planned: dict[str, Any], job: Path, out: Path, options: list[str], *, name: str
) -> tuple[int, tuple[str, ...], int]:
    """The run on two nodes of one rank each, while a node or its link is lost."""
    node = planned["rank"]
    testbed = cluster.up(name, nodes=2, ranks=1, inter=LINK)

    def strike() -> None:
        if planned["fault"] == "link":
            cluster.set_link(node, False, name=name)
            threading.Timer(12.0, lambda: cluster.set_link(node, True, name=name)).start()
            return
        cluster.kill_node(node, name=name)
        if planned["fault"] == "node-returns":
            cluster.start_node(node, name=name)

    try:
        code, words = trials.run_testbed(
            job, out, *options, name=name, strike=strike, at_step=planned["step"], timeout_s=240
        )
        members = [member for member in cluster.find(name).members if member and member.alive]
        left = sum(len(member.processes()) for member in members)
    finally:
        cluster.down(name)
    assert not testbed.switch.alive
    return code, words, left


def main() -> int:
    """Run the seeds asked for; 1 when one was not recovered."""
    parser = argparse.ArgumentParser(description="Seeded faults in real runs.")
    parser.add_argument("--seeds", type=int, nargs="+", help="run these alone (default: 0 to 49, all anew)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/faults.json"), help="where")
    options = parser.parse_args()
    try:
        namespaces.check()
        testbed = True
    except namespaces.Impossible as reason:
        print(f"no testbed, so no faults of nodes and links: {reason}", file=sys.stderr)
        testbed = False
    rows: dict[int, dict[str, Any]] = {}
    if options.seeds and options.out.exists():
        rows = {row["seed"]: row for row in json.loads(options.out.read_text(encoding="utf-8"))["runs"]}
    with tempfile.TemporaryDirectory(prefix="pdt-faults-") as folder:
        for seed in options.seeds or range(50):
            rows[seed] = one(seed, Path(folder), testbed=testbed)
            print(json.dumps(rows[seed]), flush=True)
            write(options.out, [rows[key] for key in sorted(rows)], testbed=testbed)
    lost = [seed for seed, row in rows.items() if not row["recovered"]]
    print(f"{len(rows) - len(lost)} of {len(rows)} runs recovered; lost: {lost or 'none'}")
    return 1 if lost else 0


def write(path: Path, rows: list[dict[str, Any]], *, testbed: bool) -> None:
    """The report, whole."""
    setting = {
        "steps": STEPS,
        "checkpoint_every": SAVE_EVERY,
        "ranks": RANKS,
        "watchdog_s": WATCHDOG_S,
        "testbed": testbed,
        "tolerance": {"same ranks": 0.0, "other ranks": trials.TOLERANCE},
        "made": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"setting": setting, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
