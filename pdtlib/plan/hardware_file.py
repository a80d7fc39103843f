"""Files of hardware: what ``pdt calibrate`` writes and ``hardware.cluster = "FILE.toml"`` reads.

A file is TOML with one section, ``[hardware]``, whose fields a job then has as its own: the GPU, how many of
them make a node, and under ``[hardware.measured]`` what the machine reached
(:class:`pdtlib.plan.spec.Measured`). A job that a file went into carries the numbers along, so it means the
same elsewhere.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from pdtlib.plan import presets
from pdtlib.plan.spec import Job, Problem
from pdtlib.plan.time.measured import compute_rate

FIELDS = ("gpu", "gpus_per_node", "inter", "measured")


def read_hardware(name: str, folder: Path | None) -> tuple[dict[str, object], list[Problem]]:
    """The fields of a hardware file; a relative name starts from ``folder``, the job file's."""
    path = Path(name) if folder is None else folder / name
    field = "hardware.cluster"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        return {}, [Problem(field, f"cannot read {name}: {error.strerror or error}")]
    except (ValueError, RecursionError) as error:
        return {}, [Problem(field, f"{name} is not valid TOML: {error}")]
    table = tables.get("hardware")
    if not isinstance(table, Mapping):
        return {}, [Problem(field, f"{name} has no section [hardware], so it is no hardware file")]
    extra = [key for key in tables if key != "hardware"] + [key for key in table if key not in FIELDS]
    if extra:
        return {}, [Problem(field, f"{name}: a hardware file has no {extra[0]!r}", FIELDS)]
    return dict(table), []


def peak_flops(job: Job) -> float | None:
    """What utilisation is a share of: a GPU's printed dense 16-bit peak, else the best product measured."""
    if job.hardware.gpu in presets.GPUS:
        return presets.GPUS[job.hardware.gpu].peak_flops
    if job.hardware.measured is None:
        return None
    ranks = min(job.parallel.world_size, job.hardware.gpus_per_node)
    rate = compute_rate(job.hardware.measured, precision=job.train.precision, ranks=ranks)
    return max(flops for _, flops in rate.matmul)


def memory_bytes(job: Job) -> float | None:
    """What a rank may hold: as measured, else the GPU's printed capacity; None where neither is known."""
    if job.hardware.measured is not None:
        return job.hardware.measured.memory_bytes
    gpu = presets.GPUS.get(job.hardware.gpu)
    return None if gpu is None else gpu.memory_bytes


HEADER = """\
# What this machine reaches, measured by pdt calibrate. A job file beside it says
#
#     [hardware]
#     cluster = "{name}"
#
# and its times are then predicted from these numbers instead of published ones. Rates are those of one rank
# while so many ranks work at once: "matmul" are pairs of a product's FLOPs and the FLOP/s reached;
# "attention_flops_per_s" the causal core; "memory_bytes_per_s" an addition; "optimizer_bytes_per_s" AdamW;
# "passes" how often a layer's element-wise work moves what it must at least; "kernel_s" the time of its
# smallest kernel. Collectives take start_s, and a second for every bytes_per_s that a rank sends.

"""
