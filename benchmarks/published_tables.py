"""What published runs call things, and the runs whose description is a table row of its own."""

import re
from collections.abc import Mapping
from typing import Any

from pdtlib.plan.job import Job, from_dict

Case = Mapping[str, Any]

GPUS = {
    "A100-SXM4-80GB": "A100-SXM4-80",
    "A100-80": "A100-SXM4-80",
    "A100-SXM4-40GB": "A100-SXM4-40",
    "H100-SXM5-80GB": "H100-SXM5",
    "H100-96GB-HBM2e-500W": "H100-96GB-HBM2e(Meta)",
    "H100": "H100-SXM5",
    "V100-SXM3-32GB": "V100-SXM2-32",
    "V100": "V100-SXM2-32",
    "DGX-H100": "H100-SXM5",
    "DGX-B200": "B200",
    "DGX-GB200": "GB200",
    "DGX-GB300": "GB300",
    "DGX-B300": "GB300",
}

# First match wins; the stacks are those of pdtlib.plan.time.constants.
STACKS = (
    ("DeepSpeed ZeRO-3", "deepspeed-2021"),
    ("Megatron-LM 2025", "megatron-core"),
    ("Megatron-Core r0.8", "megatron-core-2024"),
    ("Megatron-DeepSpeed 1F1B", "megatron-deepspeed-2021"),
    ("Megatron-DeepSpeed", "megatron-deepspeed"),
    ("Megatron-LM + ZB", "megatron-zb"),
    ("Megatron-LM", "megatron-2021"),
    ("MegaScale", "megascale"),
    ("torchtitan FSDP2 +compile", "fsdp-compile"),
    ("torchtitan", "fsdp"),
    ("PyTorch FSDP1", "fsdp"),
    ("nanotron", "nanotron"),
    ("NeMo 24", "nemo-2024"),
    ("NeMo", "megatron-core"),
    ("Meta internal", "meta"),
)

LINKS = (
    # A part of the description of the network -> the rate of one rank's share of it.
    ("8x HDR-200", "ib-hdr-200"),
    ("Selene", "ib-hdr-200"),
    ("4x Omni-Path", "omnipath-50"),
    ("4xHDR", "ib-hdr-100"),
    ("8x200 Gb/s RoCE", "roce-200"),
    ("NDR", "ib-ndr-400"),
    ("RoCE 400", "roce-400"),
    ("RDMA 400", "roce-400"),
    ("EFA 3.2", "efa-400"),
    ("3.2 Tb/s RoCE", "roce-400"),
    ("2 Tb/s RoCE", "roce-200"),
    ("AWS EFA", "ib-hdr-100"),
)


TOKENS = {
    # Tokens seen in training, as the papers state them; what GPU-hours are spent on.
    "LLaMA1-7B": 1.0e12,
    "LLaMA1-65B": 1.4e12,
    "LLaMA2-7B": 2.0e12,
    "LLaMA2-70B": 2.0e12,
    "Llama3.1-405B": 15.6e12,
}


def gpu_of(text: str) -> str:
    return next(name for key, name in GPUS.items() if text.startswith(key))


def link_of(text: str | None, gpu: str) -> str:
    description = text or ""
    if "1600 Gb/s RoCE" in description and gpu.startswith("A100"):
        return "roce-200"
    usual = "ib-ndr-400" if gpu.startswith(("H", "DGX")) else "ib-hdr-200"
    return next((link for part, link in LINKS if part in description), usual)


def bridge_job(table: Case) -> Job | None:
    """A row of Megatron-Bridge's table of results."""
    dims = dict(re.findall(r"(L|h|a|kv|ffn|V|head_dim|moe_ffn)(\d+)", table["dims"]))
    moe = re.search(r"(\d+) experts top(\d+)", table["dims"])

    def degree(name: str) -> int:
        value = str(table.get(name) or "1")
        return int(value) if value.isdigit() and int(value) else 1

    gpus, tp, pp, cp, ep = degree("#-GPUs"), degree("TP"), degree("PP"), degree("CP"), degree("EP")
    dp = gpus // (tp * pp * cp)
    vpp = degree("VP")
    precision = str(table.get("Precision") or "FP8").upper()  # a table without the column reports fp8
    model: dict[str, Any] = {
        "layers": int(dims["L"]),
        "hidden": int(dims["h"]),
        "heads": int(dims["a"]),
        "kv_heads": int(dims["kv"]),
        "vocab": -(-int(dims["V"]) // (128 * tp)) * 128 * tp,
        "seq": int(table["Sequence Length"]),
        "activation": "swiglu",
    }
    if "head_dim" in dims:
        model["head_dim"] = int(dims["head_dim"])
    if moe:
        model["moe"] = {"experts": int(moe[1]), "top_k": int(moe[2]), "ffn": int(dims["moe_ffn"])}
    else:
        model["ffn"] = int(dims["ffn"])
    batch, micro_batch = degree("GBS"), degree("MBS")
    if vpp * pp > model["layers"]:
        vpp = 1
    return from_dict(
        {
            "model": model,
            "train": {
                "global_batch": batch,
                "micro_batch": micro_batch,
                "precision": "bf16" if "BF16" in precision else "fp8",
                "zero_stage": 3 if degree("FSDP") > 1 else 1,
                "sequence_parallel": tp > 1,
            },
            "parallel": {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": vpp},
            "hardware": {"gpu": gpu_of(table["System"]), "inter": "ib-ndr-400"},
        }
    )


def figure_job(table: Case) -> Job:
    """Narayanan 2021, figures 12 and 18: GPT-3 on 96 A100s."""
    interleaved = table.get("schedule", "interleaved") == "interleaved"
    return from_dict(
        {
            "model": {
                "layers": 96,
                "hidden": 12288,
                "heads": 96,
                "vocab": 51200,
                "seq": 2048,
                "dropout": 0.1,
                "tied_embeddings": True,
            },
            "train": {
                "global_batch": table["batch"],
                "precision": "fp16",
                "recompute": "full",
                "flash_attention": False,
            },
            "parallel": {"tp": 8, "pp": 12, "vpp": 4 if interleaved else 1},
            "hardware": {"cluster": "dgx-a100"},
        }
    )
