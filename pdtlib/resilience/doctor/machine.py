"""What one machine gives its ranks: clocks, memory, cores, limits of the shell, GPUs."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from pdtlib.resilience.doctor.finding import Finding

GIB = 2**30
SHARED_MEMORY_BYTES = GIB
OPEN_FILES = 4096
BLOCK_BYTES, BLOCKS = 64 * 2**20, 4  # glibc keeps freed blocks of up to 32 MiB by itself
HUGE_PAGES = "glibc.malloc.hugetlb=1"


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


def available_cores() -> float:
    """Cores that this process may use: its affinity, or less where its control group has a quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores


def _page_faults(work: Callable[[], object]) -> int:
    """Minor page faults of ``work``, done over and over."""
    work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(BLOCKS):
        work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    state = ctypes.create_string_buffer(256)  # struct timex, all zero: only read
    answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    return None if answer < 0 else answer != 5  # TIME_ERROR
