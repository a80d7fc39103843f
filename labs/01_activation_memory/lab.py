"""Lab 01: what one Transformer layer keeps for its backward pass, against the formulas.

Predicts every saved tensor with `pdtlib.plan`, runs a real layer, collects the storages that
autograd saved, and compares them tensor by tensor. On a CPU every byte must agree, or the lab exits with 1.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import saved
import torch

from pdtlib.book.lab_parser import LabParser
from pdtlib.plan.activations import SavedTensor, Setting, layer_tensors
from pdtlib.plan.activations_cpu import cpu_layer_tensors
from pdtlib.plan.spec import Model

LAUNCH = "python labs/01_activation_memory/lab.py"
ASSIGNED = ("predict",)

PRESETS = {  # hidden, heads, kv_heads of the Llama block, sequence, micro-batch
    "laptop": (256, 8, 2, 256, 2),
    "gpu": (4096, 32, 8, 2048, 1),
    "gpu-large": (8192, 64, 8, 4096, 1),
}


@dataclass(frozen=True)
class Case:
    """One layer under one setting."""

    name: str
    model: Model
    setting: Setting


def cases(preset: str) -> list[Case]:
    """The layers that the lab runs: a GPT block as the formulas assume it, then one change at a time."""
    hidden, heads, kv_heads, seq, micro_batch = PRESETS[preset]
    shape = {"layers": 1, "hidden": hidden, "heads": heads, "vocab": 256, "seq": seq}
    gpt = Model(**shape, dropout=0.1)
    plain = Model(**shape)
    llama = Model(**shape, activation="swiglu", kv_heads=kv_heads, ffn=int(3.5 * hidden))
    size = {"seq": seq, "micro_batch": micro_batch, "fused_swiglu": False}
    return [
        Case("GPT block with dropout", gpt, Setting(**size)),
        Case("  selective recomputation", gpt, Setting(**size, recompute="selective")),
        Case("  full recomputation", gpt, Setting(**size, recompute="full")),
        Case("GPT block without dropout", plain, Setting(**size)),
        Case("  flash attention", plain, Setting(**size, flash_attention=True)),
        Case("Llama block, flash attention", llama, Setting(**size, flash_attention=True)),
    ]


def predict(case: Case, *, device: torch.device) -> tuple[SavedTensor, ...]:
    """What the plan says this device's kernels keep: GPU kernels as in the papers, or torch's on a CPU."""
    if device.type != "cpu":
        return layer_tensors(case.model, setting=case.setting)
    tensors = cpu_layer_tensors(case.model, setting=case.setting)
    if case.model.positions == "rotary" and case.setting.recompute != "full":
        # One layer alone also keeps the cosines and sines, cast for q and cast for k.
        table = case.setting.seq * case.model.head_dim // 2 * case.setting.element_bytes
        tensors += (SavedTensor(saved.ROTARY_TABLES, 4 * table, "tensor", "the rotation's gradient"),)
    return tensors


def compare(case: Case, *, device: torch.device) -> dict[str, Any]:
    """Predict, run and compare one case; bytes."""
    formula = {item.name: int(item.bytes) for item in layer_tensors(case.model, setting=case.setting)}
    predicted = {item.name: item for item in predict(case, device=device)}
    measured = saved.name_tensors(
        saved.run_layer(case.model, case.setting, device=device), case.model, case.setting
    )
    rows = []
    for name in [*formula, *(name for name in {**predicted, **measured} if name not in formula)]:
        known = predicted.get(name)
        expected = int(known.bytes) if known else 0
        rows.append(
            {
                "tensor": name,
                "formula_bytes": formula.get(name, 0),
                "kernel_bytes": expected - formula.get(name, 0),
                "predicted_bytes": expected,
                "measured_bytes": measured.get(name, 0),
                "error_bytes": measured.get(name, 0) - expected,
                "why": known.why if known else "",
            }
        )
    columns = ("formula_bytes", "kernel_bytes", "predicted_bytes", "measured_bytes", "error_bytes")
    totals = {column: sum(row[column] for row in rows) for column in columns}
    sbh = case.setting.seq * case.setting.micro_batch * case.model.hidden
    return {
        "name": case.name,
        "tensors": rows,
        **totals,
        "sbh": sbh,
        "as_over_h": case.model.heads * case.setting.seq / case.model.hidden,
    }


def show(report: dict[str, Any]) -> None:
    """Print one case: a line for each tensor, then the totals, also in units of sbh."""
    print(f"\n{report['name'].strip()}")
    print(f"  {'tensor':29s} {'formula':>11s} {'+ kernels':>10s} {'measured':>11s} {'error':>6s}")
    for row in [*report["tensors"], {**report, "tensor": "total", "why": ""}]:
        note = f"  {row['why']}" if row["kernel_bytes"] and row["why"] else ""
        print(
            f"  {row['tensor']:29s} {row['formula_bytes']:>11,d} {row['kernel_bytes']:>10,d} "
            f"{row['measured_bytes']:>11,d} {row['error_bytes']:>6,d}{note}"
        )
    print(
        f"  = {report['measured_bytes'] / report['sbh']:.2f} sbh; "
        f"the formulas alone: {report['formula_bytes'] / report['sbh']:.2f} sbh"
    )


def main() -> int:
    options = LabParser(__doc__, PRESETS).parse_args()
    device = torch.device("cpu" if options.preset == "laptop" else "cuda")
    hidden, heads, _, seq, micro_batch = PRESETS[options.preset]
    print(f"one layer on {device.type}, bf16: s={seq} b={micro_batch} h={hidden} a={heads} (bytes)")
    reports = [compare(case, device=device) for case in cases(options.preset)]
    for report in reports:
        show(report)
    wrong = [
        report["name"].strip() for report in reports if any(row["error_bytes"] for row in report["tensors"])
    ]
    if options.json:
        text = json.dumps(
            {"lab": "01", "preset": options.preset, "device": device.type, "cases": reports}, indent=1
        )
        options.json.write_text(text + "\n", encoding="utf-8")
    if device.type == "cpu":
        print("\nevery byte as predicted" if not wrong else f"\nnot as predicted: {', '.join(wrong)}")
        return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
