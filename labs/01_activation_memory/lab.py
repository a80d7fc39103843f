"""Lab 01: what one Transformer layer keeps for its backward pass, against the formulas.

Predicts every saved tensor with `pdtlib.plan.activations`, runs a real layer, collects the storages that
autograd saved, and compares them tensor by tensor. On a CPU every byte must agree, or the lab exits with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saved
import torch

from pdtlib.plan.activations import Setting, layer_tensors
from pdtlib.plan.spec import Model

LAUNCH = "python labs/01_activation_memory/lab.py"

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


def kept_besides(model: Model, setting: Setting) -> Iterator[tuple[str, int, str]]:
    """What PyTorch's CPU kernels keep that the plan, which describes GPU kernels, leaves out.

    Yields (name, bytes, reason); a plan's own name means more bytes for that tensor.
    """
    if setting.recompute == "full":
        return
    tokens = setting.micro_batch * setting.seq
    hidden, scores = tokens * model.hidden, tokens * model.heads * setting.seq
    written_out = not setting.flash_attention and setting.recompute == "none"
    if model.dropout > 0:
        reason = "a bf16 mask: 2 bytes, on GPUs 1"
        yield "attention dropout mask", hidden, reason
        yield "mlp dropout mask", hidden, reason
        if written_out:
            yield "softmax dropout mask", scores, reason
    if written_out:
        yield saved.CAUSAL_MASK, setting.seq * setting.seq, "one byte a pair of positions"
    if model.norm == "layernorm":
        yield saved.NORM_STATISTICS, 2 * 2 * 2 * tokens, "mean and 1/deviation, both norms"
        return
    yield saved.NORM_STATISTICS, 2 * 4 * tokens, "1/root mean square, both norms"
    for name in ("attn_norm input", "mlp_norm input"):
        yield name, 2 * hidden, "kept as a copy in fp32: 4 bytes"
    yield saved.NORM_COPY, 2 * 4 * hidden, "both norms, before their weight"
    yield saved.ROTARY_TABLES, 4 * 2 * setting.seq * model.head_dim // 2, "cosines and sines, for q and k"
    yield saved.CORE_OUTPUT, 2 * tokens * model.heads * model.head_dim, "copied to another layout for o"


def compare(case: Case, *, device: torch.device) -> dict[str, Any]:
    """Predict, run and compare one case; bytes."""
    formula = {item.name: item.bytes for item in layer_tensors(case.model, setting=case.setting)}
    extras: dict[str, tuple[int, str]] = {}
    if device.type == "cpu":
        extras = {name: (size, reason) for name, size, reason in kept_besides(case.model, case.setting)}
    measured = saved.name_tensors(
        saved.run_layer(case.model, case.setting, device=device), case.model, case.setting
    )
    rows = []
    for name in [*formula, *(name for name in {**extras, **measured} if name not in formula)]:
        more, reason = extras.get(name, (0, ""))
        predicted = int(formula.get(name, 0)) + more
        rows.append(
            {
                "tensor": name,
                "formula_bytes": int(formula.get(name, 0)),
                "kernel_bytes": more,
                "predicted_bytes": predicted,
                "measured_bytes": measured.get(name, 0),
                "error_bytes": measured.get(name, 0) - predicted,
                "why": reason,
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
        note = f"  {row['why']}" if row["why"] else ""
        print(
            f"  {row['tensor']:29s} {row['formula_bytes']:>11,d} {row['kernel_bytes']:>10,d} "
            f"{row['measured_bytes']:>11,d} {row['error_bytes']:>6,d}{note}"
        )
    print(
        f"  = {report['measured_bytes'] / report['sbh']:.2f} sbh; "
        f"the formulas alone: {report['formula_bytes'] / report['sbh']:.2f} sbh"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), default="laptop")
    parser.add_argument("--json", type=Path, help="write predicted, measured and error to this file")
    options = parser.parse_args()
    if options.preset != "laptop" and not torch.cuda.is_available():
        parser.error(f"--preset {options.preset}: needs a GPU; valid here: laptop")
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
