"""Tensor parallelism inside nodes and across them, in the testbed: step times and bytes beside the plan's.

    python benchmarks/placement.py      two minutes, into benchmarks/results/placement.json

Lab 05's training runs on two nodes of two ranks with a slow link between them, in both placements. Before,
the four ranks measure what the plan needs: products and memory while all of them work, and collectives of
two ranks inside a node and across, both pairs at once, since they share the link. The plan never sees the
training's times. Needs a testbed (root, or user namespaces).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pdtlib.engine.calibration import Clock, collective_rates, compute_rate, describe, effort, memory_of_rank
from pdtlib.engine.collectives import all_reduce
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.plan.job import Job
from pdtlib.plan.spec import CollectiveRate, ComputeRate, Hardware, Measured
from pdtlib.plan.time.measured import measured_system
from pdtlib.plan.time.step import StepTime, step_time
from pdtlib.testbed import cluster, launch

sys.path.insert(0, str(Path(__file__).parents[1] / "labs" / "05_3d_parallel"))
import nodes

EFFORT = replace(effort("cpu", short=True), messages=(2**8, 2**16), hidden=128, tokens=256, seconds=0.5)
"""Messages and layers of about the sizes that the training has."""

RATE = "20mbit"
"""Slow enough that the link takes nearly all of a step in both placements: of what four ranks lose when they
take turns on fewer cores, which the plan has no term for, little is left in the ratio."""

IN_A_ROW = 4
"""All-reduces across the link between two moments at which all ranks meet."""


def measure(file: Path) -> None:
    """On one rank of the testbed; rank 0 writes what was measured."""
    init("gloo")
    here, cpu = nodes.job().parallel, torch.device("cpu")
    everyone = build_mesh().group("dp")
    pairs = build_mesh(here, order=nodes.ORDERS["inside"])
    compute = compute_rate("fp32", EFFORT, Clock(cpu, everyone, EFFORT.seconds))
    inside = collective_rates(EFFORT, Clock(cpu, pairs.group("tp"), EFFORT.seconds))
    across = link_rate(pairs.group("dp"), everyone, Clock(cpu, everyone, 4 * EFFORT.seconds))
    if everyone.rank == 0:
        found = {
            "compute": asdict(compute),
            "inside": [asdict(rate) for rate in inside],
            "across": across,
        }
        file.write_text(json.dumps(found), encoding="utf-8")
    shutdown()


def link_rate(pair: Group, everyone: Group, clock: Clock) -> dict[str, float]:
    """Latency and rate of an all-reduce across the link while the other pair does the same.

    All ranks meet now and then, or one pair would have the link to itself while the other lags behind.
    """

    def work(x: torch.Tensor) -> None:
        for _ in range(IN_A_ROW):
            all_reduce(x, pair, phase="calibration")
        all_reduce(torch.ones(1), everyone, phase="calibration")

    small, large = (torch.ones(elements) for elements in EFFORT.messages)
    fast_s, slow_s = (clock(partial(work, x)) / IN_A_ROW for x in (small, large))
    rate = (large.nbytes - small.nbytes) / (slow_s - fast_s)
    return {"start_s": fast_s - small.nbytes / rate, "bytes_per_s": rate}


def predict(job: Job, found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds of a step in both placements: of computation, and of messages along each axis."""
    compute = ComputeRate(**{**found["compute"], "matmul": tuple(map(tuple, found["compute"]["matmul"]))})
    measured = Measured(
        date="",
        host=describe("cpu"),
        memory_bytes=memory_of_rank("cpu", nodes.NODES * nodes.RANKS),
        compute=(compute,),
        collectives=tuple(CollectiveRate(**rate) for rate in found["inside"]),
    )

    def on_nodes_of(ranks: int) -> StepTime:
        hardware = Hardware(gpus_per_node=ranks, n_gpus=nodes.NODES * nodes.RANKS, measured=measured)
        placed = replace(job, hardware=hardware)
        system = measured_system(placed, measured)
        fabric = replace(
            system.fabric,
            inter_bytes_per_s=found["across"]["bytes_per_s"],
            inter_start_s=found["across"]["start_s"],
            inter_step_s=0.0,
        )
        return step_time(placed, system=replace(system, fabric=fabric))

    # The plan puts ranks of tp side by side, so tp across nodes is what it has for nodes of one rank, and
    # replicas inside one what it has for a node that holds them all.
    neighbours, strangers, together = on_nodes_of(nodes.RANKS), on_nodes_of(1), on_nodes_of(4)
    parts = {
        "inside": {"tp": neighbours.exposed_s["tp"], "dp": neighbours.exposed_s["dp"]},
        "across": {"tp": strangers.exposed_s["tp"], "dp": together.exposed_s["dp"]},
    }
    return {
        where: {"compute": neighbours.compute_s, **axes, "step_s": neighbours.compute_s + sum(axes.values())}
        for where, axes in parts.items()
    }


def main() -> int:
    """Measure, predict, run both placements, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)  # of a rank in the testbed: its file
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/placement.json"))
    options = parser.parse_args()
    if options.rank:
        measure(options.rank)
        return 0
    name = f"placement-{time.monotonic_ns()}"
    rates, said = options.out.with_suffix(".rates"), []
    cluster.up(name, nodes=nodes.NODES, ranks=nodes.RANKS, inter=RATE)
    try:
        code = launch.run([__file__, "--rank", str(rates.absolute())], name=name, say=said.append)
        if code:
            raise RuntimeError(f"measuring ended with {code}:\n" + "\n".join(said[-30:]))
        found = json.loads(rates.read_text(encoding="utf-8"))
        runs = {where: nodes.run(name, where) for where in nodes.ORDERS}
    finally:
        rates.unlink(missing_ok=True)
        cluster.down(name)
    planned = predict(nodes.job(), found)
    rows = [
        {
            "where": where,
            "predicted": planned[where],
            "step_s": run["step_s"],
            "ledger_bytes": nodes.planned(where)["between"],
            "wire_bytes": run["between"],
            "messages_off": run["messages_off"],
        }
        for where, run in runs.items()
    ]
    ratio = {
        "predicted": planned["across"]["step_s"] / planned["inside"]["step_s"],
        "measured": runs["across"]["step_s"] / runs["inside"]["step_s"],
    }
    setting = {"inter": RATE, "nodes": nodes.NODES, "ranks": nodes.RANKS, "torch": torch.__version__}
    report = {
        "setting": {**setting, "python": platform.python_version()},
        "measured": found,
        "rows": rows,
        "ratio": ratio,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"rows": rows, "ratio": ratio}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
