"""How ranks find one another and talk: interfaces, names, settings, and what an all-reduce takes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from pdtlib.engine.dist import RankError, init, shutdown, spawn
from pdtlib.plan.comm import sent_bytes
from pdtlib.resilience.doctor.finding import Finding

MESSAGE_BYTES = 4 * 2**20
SLOW_BYTES_PER_S = 1e8

SLOWING = {
    # variable: (value that slows down or hides errors, what it does)
    "NCCL_P2P_DISABLE": ("1", "keeps GPUs of a node from talking directly, so NVLink is not used"),
    "NCCL_SHM_DISABLE": ("1", "keeps GPUs of a node from using shared memory"),
    "NCCL_IB_DISABLE": ("1", "leaves InfiniBand and RoCE unused, so nodes talk over TCP"),
    "NCCL_DEBUG": ("TRACE", "prints every call"),
    "CUDA_LAUNCH_BLOCKING": ("1", "waits for every kernel, so nothing overlaps"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "checks every collective with a further one"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "lets a rank wait for ever for one that has died"),
}


def interfaces(env: Mapping[str, str]) -> Iterator[Finding]:
    """Is there a network, and do the variables that choose an interface name one that exists?"""
    present = [name for _, name in socket.if_nameindex()]
    up = [name for name in present if name != "lo" and _state(name) in ("up", "unknown")]
    described = ", ".join(f"{name}{_speed(name)}" for name in up)
    if up:
        yield Finding(check="interfaces", verdict="ok", message=f"up beside the loopback: {described}")
    else:
        yield Finding(
            check="interfaces",
            verdict="hint",
            message="only the loopback is up: runs stay on this machine",
            fix="connect a network before you train on several nodes",
        )
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = env.get(variable, "")
        names = [name for name in value.lstrip("=").split(",") if name]
        exact = variable.startswith("GLOO") or value.startswith("=")  # NCCL's are beginnings of names
        missing = [name for name in names if not any(_matches(name, other, exact) for other in present)]
        if value.startswith("^"):  # an exclusion
            continue
        if missing:
            yield Finding(
                check=variable,
                verdict="bad",
                message=f"names {', '.join(missing)}, and this machine has {', '.join(present)}",
                fix=f"export {variable}={up[0] if up else 'lo'}",
            )
        elif names:
            yield Finding(check=variable, verdict="ok", message=f"{value} is there")


def rendezvous(env: Mapping[str, str]) -> Iterator[Finding]:
    """Do other nodes get an address at which this one can be reached?"""
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError:
        yield Finding(
            check="rendezvous",
            verdict="bad",
            message=f"this machine's own name, {host}, does not resolve",
            fix=f"add it to /etc/hosts, or give torchrun --local-addr with {host}'s address",
        )
        return
    if address.startswith("127."):
        yield Finding(
            check="rendezvous",
            verdict="hint",
            message=f"{host} resolves to {address}, at which no other node can reach it",
            fix="for several nodes give torchrun --local-addr and --rdzv-conf is_host=1 on the first "
            "(is_host=0 on the others), or correct /etc/hosts",
        )
    else:
        yield Finding(check="rendezvous", verdict="ok", message=f"{host} resolves to {address}")
    master, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if master and port and env.get("RANK", "0") != "0":
        try:
            socket.create_connection((master, int(port)), timeout=3).close()
            yield Finding(check="MASTER_ADDR", verdict="ok", message=f"{master}:{port} answers")
        except OSError as error:
            yield Finding(
                check="MASTER_ADDR",
                verdict="bad",
                message=f"{master}:{port} does not answer ({error})",
                fix="start rank 0 first, open its firewall, or correct MASTER_ADDR and MASTER_PORT",
            )


def slowing_settings(env: Mapping[str, str]) -> Iterator[Finding]:
    """Variables for debugging that were left on."""
    on = {name: what for name, (value, what) in SLOWING.items() if env.get(name, "").upper() == value}
    for name, what in on.items():
        message = f"{name}={env[name]} {what}"
        yield Finding(check="settings", verdict="hint", message=message, fix=f"unset {name}")
    if not on:
        message = "no variable of NCCL, CUDA or torch slows runs down"
        yield Finding(check="settings", verdict="ok", message=message)


def bandwidth() -> Iterator[Finding]:
    """An all-reduce between two ranks of this machine."""
    try:
        seconds = max(spawn(_all_reduce_s, 2, timeout_s=60))
    except (RankError, TimeoutError) as error:
        yield Finding(
            check="bandwidth inside the node",
            verdict="bad",
            message=f"two ranks cannot talk: {str(error).strip().splitlines()[-1]}",
            fix="export GLOO_SOCKET_IFNAME=lo; look at the findings on interfaces",
        )
        return
    fix = "is something else running? Else export GLOO_SOCKET_IFNAME=lo"
    yield _rated("bandwidth inside the node", 2, seconds, fix)


def bandwidth_between(env: Mapping[str, str]) -> Iterator[Finding]:
    """An all-reduce between the first ranks of all nodes, where torchrun has started this on several."""
    ranks, here = int(env.get("WORLD_SIZE", "1")), int(env.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == here:
        return
    check, speaks = "bandwidth between nodes", env.get("LOCAL_RANK") == "0"
    try:
        init("gloo")
        first_of_nodes = dist.new_group(range(0, ranks, here), backend="gloo")
        if speaks:
            fix = "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the fastest interface; look at its cable"
            yield _rated(check, ranks // here, _all_reduce_s(first_of_nodes), fix)
        dist.barrier()  # who leaves early closes connections that others are still opening
    except RuntimeError as error:
        if speaks:
            message = f"the nodes cannot talk: {str(error).strip().splitlines()[0]}"
            fix = "look at the findings on interfaces and rendezvous; open the firewall between the nodes"
            yield Finding(check=check, verdict="bad", message=message, fix=fix)
    finally:
        shutdown()


def _rated(check: str, ranks: int, seconds: float, fix: str) -> Finding:
    """The finding on an all-reduce of so many seconds; a rank sends 2 (n-1)/n of the message."""
    rate = sent_bytes("all_reduce", MESSAGE_BYTES, ranks) / seconds
    text = (
        f"gloo, {ranks} ranks, {MESSAGE_BYTES / 2**20:.0f} MiB: {seconds * 1e3:.1f} ms, {rate / 1e9:.3g} GB/s"
    )
    if rate < SLOW_BYTES_PER_S:
        return Finding(check=check, verdict="hint", message=f"{text}, slower than a 1 Gbit/s link", fix=fix)
    return Finding(check=check, verdict="ok", message=text)


def _all_reduce_s(group: dist.ProcessGroup | None = None) -> float:
    message = torch.ones(MESSAGE_BYTES // 4)
    times = []
    for _ in range(5):
        dist.barrier(group)
        start = time.perf_counter()
        dist.all_reduce(message, group=group)
        times.append(time.perf_counter() - start)
    return min(times)


def _matches(name: str, present: str, exact: bool) -> bool:
    return present == name if exact else present.startswith(name)


def _state(interface: str) -> str:
    try:
        return Path(f"/sys/class/net/{interface}/operstate").read_text().strip()
    except OSError:
        return "unknown"


def _speed(interface: str) -> str:
    try:
        speed = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        return ""
    return f" ({speed / 1000:g} Gbit/s)" if speed > 0 else ""
