"""One rank of one contender: builds it, then does on its standard input's word what :mod:`peers` asks.

    python peers_worker.py '{"contender": "torch.ddp", "rank": 0, "world": 2, ...}' REPLY_FD

Words are lines of JSON, ``{"do": "steps", "count": 3}``, ``{"do": "profile"}`` or ``{"do": "end"}``; the
answer to each is a line on the file descriptor REPLY_FD, so that nothing a library prints can come between.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peers_task import MODELS, Contender, Task, num_bytes

TIMEOUT_S = 300


def main(spec: dict[str, Any], reply: Any) -> None:
    """Follow the words until ``end``."""
    torch.set_num_threads(spec["threads"])
    device = _join(spec)
    task = Task(
        model=MODELS[spec["model"]],
        precision=spec["precision"],
        rank=spec["rank"],
        world=spec["world"],
        device=device,
        options=spec["options"],
    )
    module, _, function = spec["contender"].partition(".")
    _forget_peak(device)
    before = _peak_bytes(device)
    contender: Contender = getattr(importlib.import_module(f"peers_{module}"), function)(task)
    losses: list[float | None] = []
    for line in sys.stdin:
        word = json.loads(line)
        if word["do"] == "steps":
            answer: dict[str, Any] = _steps(contender, word["count"], losses, device)
        elif word["do"] == "profile":
            answer = _profile(contender, losses)
        else:
            answer = {
                "losses": losses,
                "peak_bytes": _peak_bytes(device) - before,
                "state_bytes": num_bytes(contender.states()),
            }
        print(json.dumps(answer), file=reply, flush=True)
        if word["do"] == "end":
            break
    contender.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(spec: dict[str, Any]) -> torch.device:
    rank, world = spec["rank"], spec["world"]
    gpu = spec["device"] == "cuda"
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    # DeepSpeed reads the launcher's variables even where a group exists.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    if world > 1 or spec["contender"].startswith("deepspeed"):
        dist.init_process_group(
            "nccl" if gpu else "gloo",
            init_method=Path(spec["meeting"]).as_uri(),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
    return device


def _steps(
    contender: Contender, count: int, losses: list[float | None], device: torch.device
) -> dict[str, Any]:
    if dist.is_initialized():
        dist.barrier()
    times = []
    used = _cpu_s()
    for _ in range(count):
        began = time.perf_counter()
        losses.append(contender.step())
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {"times": times, "cpu_s": (_cpu_s() - used) / count}


def _profile(contender: Contender, losses: list[float | None]) -> dict[str, Any]:
    """Calls of Python functions during one step, and the lines that each function called has.

    Hooks in the backward pass are among them: on a CPU autograd runs in the thread that called it.
    """
    calls = 0
    functions: dict[Any, int] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
            code = frame.f_code
            if code not in functions:
                functions[code] = len({line for *_, line in code.co_lines() if line})

    sys.setprofile(note)
    try:
        losses.append(contender.step())
    finally:
        sys.setprofile(None)
    lines = {f"{code.co_filename}:{code.co_firstlineno} {code.co_name}": n for code, n in functions.items()}
    return {"python_calls": calls, "lines": lines}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not say a process's peak memory")


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as reply_file:
        main(json.loads(sys.argv[1]), reply_file)
