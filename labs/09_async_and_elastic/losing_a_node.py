"""A node that loses its power: three nodes of one worker each, in the testbed, of which one is killed.

The nodes are namespaces of this machine with a slow network between them (``pdt testbed``). Workers that wait
for the lost node see their connections end or, if not even that was sent, are ended by the watchdog.
torchrun's agents agree on who is left and start the workers again from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pdtlib.resilience import trials
from pdtlib.testbed import cluster, namespaces

NAME = "lab-09"
LINK = "5mbit"
"""Slow enough that a step takes a while, so that the node dies in the step that was meant."""
NODE = 1


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the run ended: exit code, nodes that were down by then, and processes that it has left."""

    code: int
    down: int
    left: int


def reason_against() -> str:
    """Why this machine cannot make a testbed; empty if it can."""
    try:
        namespaces.check()
    except namespaces.Impossible as reason:
        return str(reason)
    return ""


def lose_one(job: Path, out: Path, *options: str, nodes: int, at_step: int, timeout_s: float) -> Ended:
    """Train on ``nodes`` nodes, and cut the power of one once ``at_step`` steps are done."""
    cluster.down(NAME)  # of a lab that was broken off
    cluster.up(NAME, nodes=nodes, ranks=1, inter=LINK)
    try:
        code, _ = trials.run_testbed(
            job,
            out,
            *options,
            name=NAME,
            strike=lambda: cluster.kill_node(NODE, name=NAME),
            at_step=at_step,
            min_nodes=nodes - 1,  # else one that is slow to meet again is left behind
            timeout_s=timeout_s,
        )
        found = cluster.find(NAME)
        up = [node for node in range(nodes) if found.alive(node)]
        left = sum(len(found.member(node).processes()) for node in up)
    finally:
        cluster.down(NAME)
    return Ended(code=code, down=nodes - len(up), left=left)
