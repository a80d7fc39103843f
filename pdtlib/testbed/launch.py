"""A multi-node torchrun in the testbed: one agent a node, as Slurm or Kubernetes would start them.

The agents meet at node 0, which hosts the rendezvous; where nodes may come and go, at the switch, so that
node 0 may be lost like any other. This module only starts them, passes on what they
print, and, where nodes may come and go, starts one again on a node that has come back; everything else is
torchrun's own doing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pdtlib.testbed.cluster import SWITCH_ADDRESS, NoTestbed, Testbed, address, find

PORT = 29400
OVER = "RendezvousClosedError"
"""What an agent says that wanted to join when the others had ended the run."""
POLL_S = 0.1
SETTLE_S = 0.5
PATIENCE = {
    "last_call_timeout": 5,  # seconds for stragglers once enough nodes are there
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,  # a node that is silent for 3 s is lost
    "join_timeout": 120,
}


@dataclass(frozen=True, kw_only=True)
class Agent:
    """torchrun on one node, since the node was started as ``holder_pid``."""

    node: int
    holder_pid: int
    process: subprocess.Popen[str]
    reader: threading.Thread
    came_late: threading.Event


def run(
    arguments: Sequence[str],
    *,
    name: str = "default",
    min_nodes: int | None = None,
    max_restarts: int = 0,
    env: dict[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Run ``torchrun ARGUMENTS`` on every node, each rank on one core; returns the exit code.

    With ``min_nodes`` the run is elastic: it goes on while so many nodes are left, and a node that comes
    back joins again. The code is 0 when all agents ended well on the nodes that are up, else that of the
    first that did not; one that came when the others had ended the run does not count. No process of the run
    is left when this returns.
    """
    testbed = find(name)
    nodes = testbed.nodes
    if min_nodes is not None and not 1 <= min_nodes <= nodes:
        raise ValueError(f"min_nodes={min_nodes}: valid are 1 to {nodes}")
    run_id = uuid.uuid4().hex[:12]
    begin = _Starter(arguments, run_id, min_nodes or nodes, max_restarts, env or {}, say)
    meeting_point = _host_rendezvous(testbed) if begin.elastic(testbed) else None
    agents = {node: begin(testbed, node) for node in range(nodes) if min_nodes or testbed.member(node)}
    codes: dict[int, int] = {}
    late: set[int] = set()
    try:
        while agents:
            time.sleep(POLL_S)
            for node, agent in list(agents.items()):
                code = agent.process.poll()
                if code is None:
                    continue
                del agents[node]
                if code and min_nodes:
                    time.sleep(SETTLE_S)  # a node's processes die a moment before the node itself
                agent.reader.join(SETTLE_S)
                if min_nodes and agent.came_late.is_set():
                    late.add(node)
                elif min_nodes is None or _is_up(name, agent):
                    codes[node] = code
                if code and min_nodes is None:
                    return code if code > 0 else 128 - code
            for node in range(nodes) if agents and min_nodes else ():
                testbed = find(name)
                if node not in {*agents, *codes, *late} and testbed.alive(node):
                    agents[node] = begin(testbed, node)
    except NoTestbed:
        return 1
    finally:
        for agent in agents.values():
            _terminate(agent)
        for agent in agents.values():
            _end(agent)
        if meeting_point is not None:
            meeting_point.kill()
            meeting_point.wait()
    bad = [code for code in codes.values() if code]
    return (bad[0] if bad[0] > 0 else 128 - bad[0]) if bad else 0 if codes else 1


@dataclass(frozen=True)
class _Starter:
    """Starts torchrun on a node of the testbed."""

    arguments: Sequence[str]
    run_id: str
    min_nodes: int
    max_restarts: int
    env: dict[str, str]
    say: Callable[[str], None]

    def elastic(self, testbed: Testbed) -> bool:
        return self.min_nodes < testbed.nodes

    def __call__(self, testbed: Testbed, node: int) -> Agent:
        holder, elastic = testbed.member(node), self.elastic(testbed)
        host = SWITCH_ADDRESS if elastic else address(0)
        settings = {"is_host": int(node == 0 and not elastic), **PATIENCE}
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", f"{self.min_nodes}:{testbed.nodes}", "--nproc-per-node", str(testbed.ranks)),
            *("--rdzv-id", self.run_id, "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{host}:{PORT}", "--local-addr", address(node)),
            *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in settings.items())),
            *("--max-restarts", str(self.max_restarts), "--monitor-interval", "0.2"),
            *self.arguments,
        ]
        setting = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "e0",
            "TP_SOCKET_IFNAME": "e0",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # else every closed connection is worth thirty lines
            "LOGLEVEL": "ERROR",
            "PDT_NODE": str(node),
            # An agent that keeps its store does not tell a node that joins later where it is (torch 2.13).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if elastic else "0",
            **self.env,
        }
        process = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "TERM",
                "--",
                *holder.inside(*command),
            ],  # nothing outlives this process
            env=setting,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        came_late = threading.Event()
        reader = threading.Thread(
            target=_pass_on, args=(process.stdout, f"node {node}: ", self.say, came_late), daemon=True
        )
        reader.start()
        return Agent(node=node, holder_pid=holder.pid, process=process, reader=reader, came_late=came_late)


def _host_rendezvous(testbed: Testbed) -> subprocess.Popen[str]:
    """Start the agents' meeting point at the switch; returns when it listens."""
    listen = testbed.switch.inside(sys.executable, "-m", "pdtlib.resilience.rendezvous", str(PORT))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", *listen],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"the rendezvous at {SWITCH_ADDRESS}:{PORT} did not start")
    return process


def _pass_on(stream: TextIO, prefix: str, say: Callable[[str], None], came_late: threading.Event) -> None:
    for line in stream:
        if OVER in line:
            came_late.set()
        say(prefix + line.rstrip("\n"))


def _is_up(name: str, agent: Agent) -> bool:
    """Is the node still the one on which the agent was started?"""
    testbed = find(name)
    holder = testbed.members[agent.node]
    return testbed.alive(agent.node) and holder is not None and holder.pid == agent.holder_pid


def _terminate(agent: Agent) -> None:
    """Ask torchrun to end its ranks and itself; nsenter, its parent here, would end without it."""
    pid = agent.process.pid
    try:
        inner = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        os.kill(int(inner[0]), signal.SIGTERM)
    except (OSError, IndexError):  # it has ended, or has not begun
        agent.process.terminate()


def _end(agent: Agent, timeout_s: float = 40.0) -> None:
    """Wait for an agent that was told to end; it ends its ranks first."""
    try:
        agent.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        agent.process.kill()
        agent.process.wait()
