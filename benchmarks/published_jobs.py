"""From a published run, as the schema of ``published_runs.json`` describes it, to a job and a software stack.

What papers leave open is filled in here, each choice with its reason; plan itself knows nothing of the
schema. Only ``model``, ``train``, ``parallel``, ``hardware`` and ``input`` are read, and of ``assume`` the
name of the pipeline schedule, which the schema has no other place for. Metric values are never looked at.
"""

import re
from typing import Any

from published_tables import (
    BUDGETS,
    STACKS,
    Case,
    bridge_job,
    bridge_precision,
    expert_ranks,
    figure_job,
    gpu_of,
    gpus_per_node_of,
    link_of,
    mixture_of,
)

from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.stage import Ends


def stack_of(case: Case) -> str:
    """The software stack's name."""
    train = case.get("train") or {}
    framework = train.get("framework") or ""
    if "NeMo" in framework and train.get("zero_stage") == 3:
        return "nemo-2024"  # PaxML, which that table compares
    if framework == "Megatron-DeepSpeed" and "Selene" in str((case.get("hardware") or {}).get("inter")):
        return "mt-nlg"
    if not framework and "System" in (case.get("input") or {}):
        return "megatron-core"
    gpu = str((case.get("hardware") or {}).get("gpu") or "")
    if "llm-foundry" in framework:
        return "foundry-h100" if gpu.startswith("H") else "foundry"  # its tables for the two are years apart
    if case.get("kind") == "gpu_hours" and not mixture_of(case["model"]):
        return "meta" if gpu.startswith("H") else "fsdp"
    usual = "megatron-2021" if not gpu or gpu_of(gpu).startswith(("A", "V")) else USUAL_SOFTWARE
    return next((stack for part, stack in STACKS if part in framework), usual)


# The zero-bubble paper (Qi et al. 2023, Table 2) does not state its vocabulary. Its models are called 1.5B,
# 6.2B, 14.6B and 28.3B; with 12 l h^2 + V h parameters that holds for V near 32,000 (1.48, 6.17, 14.63,
# 28.28) and not for GPT-2's 51,200 (14.73, 28.40).
ZERO_BUBBLE_VOCAB = 32_000

# What the printed peak doubles or triples, quantising with rotations, layers left in 16 bit and attention eat
# up again: NVIDIA's NVFP4 recipe keeps about 15 % of the products in bf16 (arXiv:2509.25149, section 4), so
# that 1 / (0.85 / 2 + 0.15 * 2) = 1.4 is left of the double rate.
FP4_OVER_FP8 = 1.4


def system_for(case: Case, job: Job) -> System:
    """The system with the case's stack on it. Plan has no fp4: such runs are fp8 at a higher rate."""
    system = system_of(job, software=stack_of(case))
    table = case.get("input") or {}
    if "System" not in table or bridge_precision(table) != "fp4":
        return system
    return system_of(job, software=stack_of(case), fp8_share=FP4_OVER_FP8 * system.software.fp8_share)


def job_of(case: Case) -> Job | None:
    """The job, or None where the case is not a training run."""
    if "System" in (case.get("input") or {}):
        return bridge_job(case["input"])
    if "config" in (case.get("input") or {}):
        return figure_job(case["input"])
    if not case.get("model") or not (case.get("model") or {}).get("layers"):
        return None
    if case.get("kind") == "mfu_only":
        return None  # its layout was never published
    return _job(case)


def _job(case: Case) -> Job:
    degrees = _degrees(case)
    zero = _zero_stage(case)
    batch, micro_batch = _batch(case, degrees)
    schedule, vpp = _schedule(case, case["parallel"])
    layers = case["model"]["layers"] + (sum(light_ends(case)) if degrees["pp"] > 1 else 0)
    framework = case["train"].get("framework") or ""
    if "Megatron-Core r0.8" in framework and degrees["pp"] > 1:
        # Interleaved by as many chunks as fit, which its authors say but do not list.
        vpp = next(v for v in (8, 7, 6, 4, 3, 2, 1) if layers % (degrees["pp"] * v) == 0 or v == 1)
        schedule = "interleaved" if vpp > 1 else "1f1b"
    vpp = min(vpp, layers // degrees["pp"]) if degrees["pp"] > 1 else 1
    if schedule == "interleaved" and batch // (degrees["dp"] * micro_batch) % degrees["pp"]:
        schedule, vpp = "1f1b", 1
    hardware = case["hardware"]
    return from_dict(
        {
            "model": {**_model(case["model"], case["train"], degrees), "layers": layers},
            "train": {
                "global_batch": batch,
                "micro_batch": micro_batch,
                "zero_stage": zero,
                **_precision(case["train"].get("precision") or "bf16"),
                **_memory_savers(case, degrees["tp"]),
            },
            "parallel": {**degrees, "vpp": vpp, "schedule": schedule},
            "hardware": {
                "gpu": gpu_of(hardware["gpu"]),
                "gpus_per_node": gpus_per_node_of(gpu_of(hardware["gpu"]), hardware.get("gpus_per_node")),
                "inter": link_of(hardware.get("inter"), hardware["gpu"]),
            },
        }
    )


def completed(case: Case) -> Case:
    """The case with what other pages of its paper say of the run.

    Llama 3 405B's GPU-hours come without a layout; most of its training had the one of its Table 4, with one
    layer fewer on the first and last stage (section 3.3.2).
    """
    if case.get("kind") != "gpu_hours" or case["model"]["hidden"] < 16384 or case["parallel"].get("dp"):
        return case
    train = {"global_batch": 2048, "micro_batch": 1, "sequence_parallel": True, "zero_stage": 1}
    return {
        **case,
        "parallel": {**case["parallel"], "tp": 8, "pp": 16, "dp": 128, "vpp": 8},
        "train": {**case["train"], **train},
        "assume": [*(case.get("assume") or []), "first and last stage have one layer fewer"],
    }


def _degrees(case: Case) -> dict[str, int]:
    """dp from the number of GPUs where it is not given, and never more replicas than sequences."""
    tp, pp, cp = (case["parallel"].get(axis) or 1 for axis in ("tp", "pp", "cp"))
    dp = case["parallel"].get("dp") or max(1, (case["hardware"].get("n_gpus") or 2048) // (tp * pp * cp))
    dp = min(dp, case["train"].get("global_batch") or dp)
    moe = mixture_of(case["model"])
    ep = expert_ranks(case["parallel"].get("ep") or 1, moe, dp * cp) if moe else 1
    return {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep}


def _zero_stage(case: Case) -> int:
    framework, stage = case["train"].get("framework") or "", case["train"].get("zero_stage") or 0
    if "Megatron" in framework or "MegaScale" in framework or case["parallel"]["pp"] > 1:
        # Megatron's distributed optimizer reduces once a step, whatever a paper calls it.
        return min(stage, 1)
    unpublished = not framework and not case["parallel"].get("dp") and case["parallel"]["tp"] == 1
    if unpublished or framework.startswith("Meta xformers"):
        return 3  # a layout that fits: fully sharded
    return int(stage)


def _batch(case: Case, degrees: Case) -> tuple[int, int]:
    """Global and micro-batch. One that nobody states is 4 without a pipeline and 1 with one; a global batch
    that replicas cannot share evenly is rounded down."""
    dp, pp = degrees["dp"], degrees["pp"]
    micro_batch = case["train"].get("micro_batch")
    batch = case["train"].get("global_batch") or dp * (micro_batch or 1)
    if not micro_batch:
        micro_batch = min(4, max(1, batch // dp)) if pp == 1 else 1
    unit = micro_batch * dp
    return max(1, batch // unit) * unit, micro_batch


def _model(model: Case, train: Case, degrees: Case) -> dict[str, Any]:
    """GPTs of up to 4,096 positions learn them; those without flash attention trained with dropout, which
    attention split over ranks has not; vocabularies are padded as Megatron pads them."""
    tp, whole = degrees["tp"], degrees["cp"] == 1
    vocab = ZERO_BUBBLE_VOCAB if "+ ZB" in (train.get("framework") or "") else model["vocab"]
    gelu = model["activation"] == "gelu"
    short = model["seq"] <= 4096
    padded = -(-vocab // (128 * tp)) * 128 * tp
    table = {
        "hidden": model["hidden"],
        "heads": model["heads"],
        "kv_heads": model.get("kv_heads") or model["heads"],
        "ffn": model["ffn"],
        "vocab": padded if tp > 1 or gelu else vocab,
        "seq": model["seq"],
        "activation": model["activation"],
        "tied_embeddings": bool(model.get("tied_embeddings")),
        "positions": "learned" if short and gelu else "rotary",
        "dropout": 0.1 if gelu and short and whole and not train.get("flash_attention") else 0.0,
    }
    moe = mixture_of(model)
    if moe:
        table |= {"moe": moe, "ffn": moe["ffn"]}
    if model.get("head_dim") or model["hidden"] % model["heads"]:
        table["head_dim"] = model.get("head_dim") or -(-model["hidden"] // model["heads"])
    return table


def _memory_savers(case: Case, tp: int) -> dict[str, Any]:
    """NeMo and Megatron-Core turn sequence parallelism on with tp; Llamas use flash attention."""
    train, framework = case["train"], case["train"].get("framework") or ""
    implied = tp > 1 and ("NeMo" in framework or "Megatron-Core" in framework)
    return {
        "recompute": _recompute(train),
        "sequence_parallel": bool(train.get("sequence_parallel")) or implied,
        "flash_attention": bool(train.get("flash_attention")) or case["model"]["activation"] != "gelu",
    }


def _precision(text: str) -> dict[str, str]:
    """Megatron reduces in fp16 or, for bf16, in fp32; FSDP gathers in bf16 and reduces in fp32."""
    if "fp8" in text:
        return {"precision": "fp8", "grad_precision": "same"}
    if text.startswith("fp16"):
        return {"precision": "fp16", "grad_precision": "same"}
    wide = ("fp32", "DEFAULT", "bf16-mixed")
    return {"precision": "bf16", "grad_precision": "fp32" if any(part in text for part in wide) else "same"}


def _recompute(train: Case) -> str:
    text = train.get("recompute") or "none"
    if text.startswith("full"):
        return "full"
    if text in ("selective", "selective?", "selective_sp") and not train.get("flash_attention"):
        return "selective"
    return "none"


def half_recomputed(case: Case) -> bool:
    """Whether about half of the work is recomputed: every other layer, or every other product of a layer."""
    text = (case.get("train") or {}).get("recompute") or ""
    return "layer" in text or "op" in text.replace("policy", "") or "partial" in text


def light_ends(case: Case) -> Ends:
    """Layers that the first and the last stage have fewer than the others; the job fills their places.

    nanotron cuts the model by what its blocks compute, and counts the head as one of them.
    """
    if any("one layer fewer" in text for text in case.get("assume") or []):
        return (1, 1)
    framework = (case.get("train") or {}).get("framework") or ""
    if "nanotron" not in framework or (case["parallel"].get("pp") or 1) == 1:
        return (0, 0)
    model = case["model"]
    kept = 2 + 2 * (model.get("kv_heads") or model["heads"]) / model["heads"]
    layer = kept * model["hidden"] ** 2 + 3 * model["hidden"] * model["ffn"]
    return (0, round(model["vocab"] * model["hidden"] / layer))


def _schedule(case: Case, parallel: Case) -> tuple[str, int]:
    vpp = parallel.get("vpp") or 1
    assumed = " ".join(case.get("assume") or [])
    named = re.search(r"schedule=([\w-]+)", assumed)
    names = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-1p": "zb-h1", "ZB-2p": "zb-h2", "ZB-H1": "zb-h1"}
    names |= {"ZB-H2": "zb-h2", "ZB-V": "zb-v"}
    if named and named[1] in names:
        schedule = names[named[1]]
        return schedule, {"interleaved": vpp, "zb-v": 2}.get(schedule, 1)
    framework = str((case.get("train") or {}).get("framework"))
    if parallel.get("pp", 1) % 2 == 0 and ("DualPipe" in framework + assumed or "HAI-LLM" in framework):
        return "dualpipe", 1  # DeepSeek's own
    return ("interleaved", vpp) if vpp > 1 else ("1f1b", 1)


def budget_of(case: Case) -> tuple[float, float]:
    """Tokens of the whole run, 0 where nobody states them, and the share of its GPU-hours that trained."""
    name = re.sub("[^a-z0-9]", "", str((case.get("model") or {}).get("name")).lower())
    return next(((tokens, share) for part, tokens, share in BUDGETS if part in name), (0.0, 1.0))
