"""What is misconfigured on this machine for training on several ranks, and how to mend it.

Every check looks at the machine itself and returns findings: ``ok``, ``hint`` (slower or more fragile than
need be) or ``bad`` (a run will fail or hang). Each finding that is not ``ok`` says what to do.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pdtlib.engine.dist import RankError, spawn

GIB = 2**30
SHARED_MEMORY_BYTES = GIB
OPEN_FILES = 4096
MESSAGE_BYTES = 4 * 2**20
BLOCK_BYTES, BLOCKS = 64 * 2**20, 4  # glibc keeps freed blocks of up to 32 MiB by itself

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
HUGE_PAGES = "glibc.malloc.hugetlb=1"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``verdict`` is ok, hint or bad; ``fix`` says what to do where it is not ok."""

    check: str
    verdict: str
    message: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert (self.verdict == "ok") == (not self.fix), self


def examine(*, ranks: int, measure: bool = True, env: Mapping[str, str] | None = None) -> list[Finding]:
    """All findings for ``ranks`` ranks on this machine. ``measure`` also sends and allocates something."""
    variables = os.environ if env is None else env
    found = [
        *interfaces(variables),
        *rendezvous(variables),
        *slowing_settings(variables),
        *clocks(),
        *shared_memory(),
        *threads(variables, ranks=ranks, cores=available_cores()),
        *limits(),
        *devices(ranks),
    ]
    if measure:
        found += [*allocator(), *bandwidth()]
    return found


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


def clocks() -> Iterator[Finding]:
    """Are times of several nodes comparable, and is reading them cheap?"""
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = source.read_text().strip() if source.exists() else ""
    if name in ("hpet", "acpi_pm", "jiffies"):
        yield Finding(
            check="clock source",
            verdict="hint",
            message=f"{name}: reading the time takes microseconds, so traces slow a run down",
            fix="boot with clocksource=tsc (in a virtual machine kvm-clock)",
        )
    elif name:
        yield Finding(check="clock source", verdict="ok", message=name)
    synchronised = _clock_synchronised()
    if synchronised is False:
        yield Finding(
            check="clock",
            verdict="hint",
            message="not synchronised: lanes of several nodes will be shifted in a trace",
            fix="run chrony or systemd-timesyncd on every node",
        )
    elif synchronised:
        yield Finding(check="clock", verdict="ok", message="synchronised")


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Ranks of a node and data loaders exchange data through it."""
    if not path.exists():
        return
    total, _, free = shutil.disk_usage(path)
    size = f"{path}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < SHARED_MEMORY_BYTES:
        yield Finding(
            check="shared memory",
            verdict="bad" if total < SHARED_MEMORY_BYTES else "hint",
            message=f"{size}; NCCL and data loaders fail without it (containers get 64 MiB)",
            fix="docker run --ipc=host or --shm-size=8g; on Kubernetes an emptyDir with medium: Memory there",
        )
    else:
        yield Finding(check="shared memory", verdict="ok", message=size)


def threads(env: Mapping[str, str], *, ranks: int, cores: float) -> Iterator[Finding]:
    """Do the ranks' threads fit on the cores?"""
    chosen = env.get("OMP_NUM_THREADS", "")
    each = int(chosen) if chosen.isdigit() and int(chosen) else os.cpu_count() or 1
    fitting = max(1, int(cores // ranks))
    text = f"{ranks} rank(s) of {each} thread(s) on {cores:g} core(s)"
    if ranks * each > max(cores, ranks):
        how = f"OMP_NUM_THREADS={chosen}" if chosen else "OMP_NUM_THREADS is not set"
        yield Finding(
            check="threads",
            verdict="hint",
            message=f"{text}: they get in each other's way ({how})",
            fix=f"export OMP_NUM_THREADS={fitting}",
        )
    elif ranks > cores:
        yield Finding(
            check="threads",
            verdict="hint",
            message=f"{text}: ranks take turns, so times of overlap and pipelines mean little",
            fix=f"use at most {max(1, int(cores))} rank(s) here, or a testbed with slow links",
        )
    else:
        yield Finding(check="threads", verdict="ok", message=text)


def limits() -> Iterator[Finding]:
    """Limits of the shell that a run inherits."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < OPEN_FILES:
        message = f"{files} open files: many ranks and data loaders need more"
        yield Finding(check="open files", verdict="hint", message=message, fix="ulimit -n 65536")
    else:
        yield Finding(check="open files", verdict="ok", message=f"{files} allowed")
    if any(Path("/sys/class/infiniband").glob("*")):
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if locked != resource.RLIM_INFINITY:
            yield Finding(
                check="locked memory",
                verdict="bad",
                message=f"{locked} bytes may be locked, and InfiniBand locks its buffers",
                fix="ulimit -l unlimited (in /etc/security/limits.conf; docker run --ulimit memlock=-1)",
            )
        else:
            yield Finding(check="locked memory", verdict="ok", message="unlimited")


def devices(ranks: int) -> Iterator[Finding]:
    """GPUs that torch sees, and which backend a run will take."""
    gpus = torch.cuda.device_count()
    if gpus == 0 and any(Path("/dev").glob("nvidia[0-9]*")):
        yield Finding(
            check="GPUs",
            verdict="bad",
            message=f"the system has NVIDIA devices, but torch {torch.__version__} sees none",
            fix="install a CUDA build of torch; look at CUDA_VISIBLE_DEVICES and nvidia-smi",
        )
    elif gpus:
        names = ", ".join(sorted({torch.cuda.get_device_name(index) for index in range(gpus)}))
        yield Finding(check="GPUs", verdict="ok", message=f"{gpus}: {names}; {ranks} rank(s), NCCL")
    else:
        yield Finding(check="GPUs", verdict="ok", message="none; runs use gloo on the CPU")


def allocator() -> Iterator[Finding]:
    """Does freeing a large tensor give its memory back to the system, and the next take it page by page?"""
    if sys.platform != "linux":
        return
    faults = _page_faults(lambda: torch.empty(BLOCK_BYTES, dtype=torch.uint8).fill_(1))
    share = faults * resource.getpagesize() / (BLOCKS * BLOCK_BYTES)
    text = f"{share:.0%} of the pages of {BLOCKS} tensors of {BLOCK_BYTES / 2**20:.0f} MiB were new"
    if share > 0.5 and "hugetlb" not in os.environ.get("GLIBC_TUNABLES", ""):
        yield Finding(
            check="allocator",
            verdict="hint",
            message=f"{text}: glibc returns large blocks to the system, and takes them again in 4 KiB pages",
            fix=f"for runs on the CPU, which this makes faster: export GLIBC_TUNABLES={HUGE_PAGES}",
        )
    else:
        yield Finding(check="allocator", verdict="ok", message=text)


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
    rate = MESSAGE_BYTES / seconds
    text = f"gloo, 2 ranks, {MESSAGE_BYTES / 2**20:.0f} MiB: {seconds * 1e3:.1f} ms, {rate / 1e9:.2f} GB/s"
    if rate < 1e8:
        yield Finding(
            check="bandwidth inside the node",
            verdict="hint",
            message=f"{text}, slower than a 1 Gbit/s link",
            fix="is something else running? Else export GLOO_SOCKET_IFNAME=lo",
        )
    else:
        yield Finding(check="bandwidth inside the node", verdict="ok", message=text)


def available_cores() -> float:
    """Cores that this process may use: its affinity, or less where its control group has a quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores


def _all_reduce_s() -> float:
    message = torch.ones(MESSAGE_BYTES // 4)
    times = []
    for _ in range(5):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(message)
        times.append(time.perf_counter() - start)
    return min(times)


def _page_faults(work: Callable[[], object]) -> int:
    """Minor page faults of ``work``, done over and over."""
    work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(BLOCKS):
        work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


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


def _clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    state = ctypes.create_string_buffer(256)  # struct timex, all zero: only read
    answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    return None if answer < 0 else answer != 5  # TIME_ERROR
