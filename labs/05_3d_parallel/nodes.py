"""Tensor parallelism inside a node and across two, in the testbed: a cluster made of this machine.

Two nodes of two ranks, joined by a slow link, train one model with tp = 2 and dp = 2, twice: with the ranks
of a tensor-parallel group as neighbours, so that they share a node, and the other way round. Bytes between
nodes are counted by the nodes' own network interfaces.

Run as a program, this file is one rank of such a training (lab.py starts it in the testbed).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pdtlib.book import small_run
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import build_mesh
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.testbed import cluster, launch, namespaces

NODES, RANKS, RATE = 2, 2, "50mbit"
ORDERS = {"inside": ("tp", "cp", "pp", "dp"), "across": ("dp", "cp", "pp", "tp")}
"""The axis whose ranks are neighbours first, by where tensor parallelism lies."""
TRAINING = {
    "model": {
        "layers": 4,
        "hidden": 128,
        "heads": 4,
        "ffn": 352,
        "vocab": 256,
        "seq": 128,
        "activation": "swiglu",
    },
    "train": {"global_batch": 16, "micro_batch": 2, "precision": "fp32", "learning_rate": 1e-3},
    "parallel": {"dp": 2, "tp": 2},
}
STEPS = 4


def job() -> Job:
    return from_dict(TRAINING)


def planned(where: str) -> dict[str, int]:
    """Bytes that a rank sends in a step along each axis, and those that a node sends to the other one."""
    rows = [row.row() for row in messages(job())]
    sent = {axis: small_run.sent_bytes(rows, axis) for axis in ("tp", "dp")}
    return {**sent, "between": RANKS * sent["dp" if where == "inside" else "tp"]}


def report() -> dict[str, Any]:
    """Both placements, predicted, and measured where this machine can make a testbed; else why it can't."""
    plans = {where: planned(where) for where in ORDERS}
    rate = cluster.rate_text(RATE)
    found: dict[str, Any] = {"possible": False, "reason": "", "planned": plans, "rate": rate, "runs": []}
    name = f"lab-05-{time.monotonic_ns()}"
    try:
        namespaces.check()
        cluster.up(name, nodes=NODES, ranks=RANKS, inter=RATE)
        found["runs"] = [{"where": where, "planned": plans[where], **run(name, where)} for where in ORDERS]
    except namespaces.Impossible as reason:
        return {**found, "reason": str(reason)}
    finally:
        cluster.down(name)
    return {**found, "possible": True}


def run(name: str, where: str) -> dict[str, Any]:
    """Train in the testbed: what rank 0 and its node sent."""
    with tempfile.TemporaryDirectory() as folder:
        said: list[str] = []
        file = Path(folder) / "rank0.json"
        code = launch.run([__file__, where, str(file)], name=name, say=said.append)
        if code:
            raise RuntimeError(f"the run in the testbed ended with {code}:\n" + "\n".join(said[-30:]))
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return result


def interface_bytes() -> int:
    """What this node's interface to the other has sent."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.strip().startswith("e0:"))
    return int(line.split(":")[1].split()[8])


def rank_of_a_node(where: str, file: Path) -> None:
    """Train, and let rank 0 write what it and its node sent."""
    init("gloo")
    this = job()
    mesh = build_mesh(this.parallel, order=ORDERS[where])
    batches = Batches(
        Corpus([], vocab=this.model.vocab),
        seq=this.model.seq,
        global_batch=this.train.global_batch,
        seed=this.train.seed,
    )
    result = small_run.train(this, mesh, batches, steps=STEPS, meter=interface_bytes)
    if dist.get_rank() == 0:
        rows = [row.row() for row in messages(this)]
        found = {
            "tp": small_run.sent_bytes(result.sent, "tp"),
            "dp": small_run.sent_bytes(result.sent, "dp"),
            "messages_off": small_run.differing(rows, result.sent),
            "between": min(result.metered),
            "step_s": min(result.step_s),
            "losses": result.losses,
        }
        file.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    shutdown()


if __name__ == "__main__":
    assert "RANK" in os.environ, "lab.py starts this file in the testbed"
    rank_of_a_node(sys.argv[1], Path(sys.argv[2]))
