"""The article's sections 3.2 and 3.3: heads over ranks, and what tensor parallelism sends."""

from __future__ import annotations

from dataclasses import replace

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.book.claims.section1 import A100, PARAMS
from pdtlib.book.claims.section3_code import LAB, MEGATRON, ROUNDING, RUN
from pdtlib.plan import flops, presets
from pdtlib.plan.heads import rank_heads
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.layer_ledger import layer_messages, sent_bytes_of_layer
from pdtlib.plan.params import count
from pdtlib.plan.units import GB, MB, percent_text

REGISTER = Register()
claim = REGISTER.claim

NARAYANAN = "Narayanan et al. (arXiv:2104.04473), section 3.2"
KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), section 4.2.2"
MEASURED_NVLINK = "ml-engineering, network: measured all-reduce on A100 NVLink"
GUIDE = "Megatron-LM, parallelism guide"

NVLINK_MEASURED = 235e9
"""Bytes per second of an all-reduce inside an A100 node as nccl-tests measures it; 300 GB/s are printed."""
NETWORK = presets.LINKS["ib-hdr-200"]
MFU = 0.5
ARTICLE_TP = {"7B": 1, "13B": 2, "70B": 8, "175B": 8, "530B": 8}
"""The tensor-parallel sizes of the article's own table, section 7.1."""


def job_70b(*, tp: int = 8, **model: int) -> Job:
    """The 70B shape on ``tp`` ranks, one sequence of 4,096 at a time."""
    return from_dict({"model": {"preset": "llama2-70b", **model}, "parallel": {"tp": tp}})


def layers_sent_bytes(job: Job) -> float:
    """Bytes that a rank sends in the layers for one micro-batch."""
    return job.model.layers * sent_bytes_of_layer(job)


def shares(
    bytes_per_s: float, *, tp: int = 8, peak_flops: float = A100.peak_flops
) -> tuple[float, float, float]:
    """Seconds of arithmetic by 6 N D, seconds of messages, and the messages' share, for one micro-batch."""
    job = job_70b(tp=tp)
    work = flops.training_flops(PARAMS, num_tokens=job.model.seq)
    compute_s = flops.training_seconds(work, num_gpus=tp, peak_flops=peak_flops, mfu=MFU)
    message_s = layers_sent_bytes(job) / bytes_per_s
    return compute_s, message_s, message_s / (compute_s + message_s)


def calls(phase: str) -> int:
    """All-reduces of one layer in one phase."""
    return sum(row.count for row in layer_messages(job_70b()) if row.phase == phase)


@claim(
    "C3.2-a",
    says="Attention is better split by heads.",
    registered=EXACT,
    sources=(MEGATRON, RUN),
)
def _heads() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    errors = snippet.head_errors()
    return Finding(
        "Heads do not look at one another, so a rank can do its own from q, k and v to the end. The "
        "number of heads must divide by the number of ranks; key and value heads, where there are fewer, "
        "must divide or be repeated.",
        [Reading("each rank's heads are those of one process", errors["own heads"] < ROUNDING)],
    )


@claim(
    "C3.2-b",
    says="Eight heads on four GPUs: 0 and 1, 2 and 3, 4 and 5, 6 and 7.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _eight_heads() -> Finding:
    dealt = [list(rank_heads(8, 8, tp=4, rank=rank)[0]) for rank in range(4)]
    return Finding(
        "Equal runs, in order.",
        [Reading("all eight heads, each once", dealt == [[0, 1], [2, 3], [4, 5], [6, 7]])],
    )


@claim(
    "C3.2-c",
    says="Each GPU computes only its own heads.",
    registered=EXACT,
    sources=(RUN, LAB),
)
def _own_heads() -> Finding:
    whole, part = (
        flops.forward_per_token(replace(presets.model("llama2-70b"), heads=heads, kv_heads=heads // 8))
        for heads in (64, 8)
    )
    return Finding(
        "The work of attention, too, is divided by the number of ranks.",
        [
            Reading(
                "an eighth of the attention's FLOPs on each of 8 ranks", 8 * part.attention == whole.attention
            )
        ],
    )


@claim(
    "C3.2-d",
    says="At the end an all-reduce merges the results.",
    registered=ASSUMPTION,
    sources=(MEGATRON, RUN),
)
def _merged() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    errors = snippet.head_errors()
    return Finding(
        "The step in between matters: each rank first multiplies its heads by its rows of the output "
        "matrix W_O. These products are parts of a sum. The heads' outputs themselves would have to be "
        "laid side by side; adding them up mixes unrelated heads.",
        [
            Reading("after each rank's rows of W_O", errors["through W_O"] < ROUNDING),
            Reading("the outputs of the heads themselves", errors["heads summed"] < ROUNDING),
        ],
    )


@claim(
    "C3.3-a",
    says="The forward pass needs one all-reduce a layer.",
    registered=WRONG,
    sources=(MEGATRON, NARAYANAN, LAB),
)
def _forward_calls() -> Finding:
    again = from_dict(
        {
            "model": {"preset": "llama2-70b", "dropout": 0.1},
            "train": {"recompute": "full"},
            "parallel": {"tp": 8},
        }
    )
    more = sum(row.count for row in layer_messages(again) if row.phase == "recompute")
    return Finding(
        f"A Transformer layer needs {calls('forward')}: one after attention, one after the MLP. It is one "
        f"for each of its two blocks. Full recomputation runs them again, {more} more.",
        [Reading("a Transformer layer", calls("forward") == 1)],
    )


@claim(
    "C3.3-b",
    says="The backward pass needs one all-reduce a layer.",
    registered=WRONG,
    sources=(MEGATRON, NARAYANAN, LAB),
)
def _backward_calls() -> Finding:
    return Finding(
        f"Again {calls('backward')}: for the gradient of the input of q, k and v, and of the MLP's first "
        f"matrix. That makes {calls('forward') + calls('backward')} for a layer and micro-batch.",
        [Reading("a Transformer layer", calls("backward") == 1)],
    )


@claim(
    "C3.3-c",
    says="The volume is proportional to the hidden dimension.",
    registered=IMPRECISE,
    sources=(NARAYANAN, LAB),
)
def _volume() -> Finding:
    job, longer = job_70b(), job_70b(seq=8192)
    row = layer_messages(job)[0]
    wide = from_dict(
        {
            "model": {"preset": "llama2-70b", "hidden": 2 * 8192, "head_dim": 256},
            "parallel": {"tp": 8},
        }
    )
    sent = layers_sent_bytes(job)
    return Finding(
        "It is proportional to batch × sequence × hidden size, and independent of the number of "
        f"parameters. For 70B with 4,096 positions on 8 ranks a message has {row.message_bytes / MB:.1f} "
        f"MB, of which a ring sends {row.sent_bytes_per_rank / row.count / MB:.1f} MB from each rank; all "
        f"layers together send {sent / GB:.1f} GB for a micro-batch.",
        [
            Reading("it depends on nothing else", layers_sent_bytes(longer) == sent),
            Reading(
                "for a given batch and sequence length", layers_sent_bytes(wide) == 2 * sent, usual=False
            ),
        ],
    )


@claim(
    "C3.3-d",
    says="Tensor parallelism belongs inside a node; between nodes its communication cancels the gain.",
    registered=ASSUMPTION,
    sources=(NARAYANAN, MEASURED_NVLINK),
)
def _inside() -> Finding:
    compute_s, near_s, near = shares(NVLINK_MEASURED)
    _, far_s, far = shares(NETWORK)
    gb200 = presets.GPUS["GB200"]
    _, _, rack = shares(gb200.nvlink_bytes_per_s, tp=16, peak_flops=gb200.peak_flops)
    return Finding(
        f"For 70B, one sequence of 4,096 and 8 A100s at half of peak, arithmetic takes {compute_s:.2f} s. "
        f"The messages take {near_s:.2f} s over NVLink as measured, {percent_text(near)} of both together, "
        f"and {far_s:.2f} s over one 200 Gb/s card for each GPU, {percent_text(far)}. Where NVLink joins a "
        "whole rack the line moves: 16 ranks of GB200, more than a node of eight, spend "
        f"{percent_text(rack)} at the printed rates.",
        [
            Reading("nodes of eight A100s, one 200 Gb/s card a GPU", far > 0.5 > near),
            Reading("racks whose nodes NVLink joins", rack > 0.5),
        ],
    )


@claim(
    "C3.3-e",
    says="The size of a tensor-parallel group is usually the number of GPUs in a node, such as 8.",
    registered=IMPRECISE,
    sources=(GUIDE, "the article's section 7.1"),
)
def _size() -> Finding:
    node = job_70b().hardware.gpus_per_node
    smaller = ", ".join(name for name, tp in ARTICLE_TP.items() if tp < node)
    _, _, inside = shares(NVLINK_MEASURED)
    _, _, beyond = shares(NETWORK, tp=2 * node)
    small = count(presets.model("llama2-7b")).total
    return Finding(
        "It is the upper limit rather than the usual value. The article's own table takes less for "
        f"{smaller}. Every doubling leaves each rank half of the arithmetic and the same messages, so take "
        f"the smallest size that fits: a model of {small / 1e9:.1f} billion parameters needs none.",
        [
            Reading("for the models of the article's own table", set(ARTICLE_TP.values()) == {node}),
            Reading("as the largest sensible size", inside < 0.5 < beyond, usual=False),
        ],
    )
