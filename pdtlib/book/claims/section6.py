"""The article's section 6: sequence parallelism, and how it goes with tensor parallelism."""

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
from pdtlib.plan import presets
from pdtlib.plan.activations import Setting, layer_bytes, layer_tensors
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.layer_ledger import sent_bytes_of_layer
from pdtlib.plan.params import count
from pdtlib.plan.placement import rank_tensors
from pdtlib.plan.sharding import shard_range
from pdtlib.plan.spec import Model, Parallel
from pdtlib.plan.states import ZERO
from pdtlib.plan.units import GB, GIB, TB, percent_text

REGISTER = Register()
claim = REGISTER.claim

KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), section 4"
EARLIER = "Li et al. (arXiv:2105.13120)"
ULYSSES = "DeepSpeed-Ulysses (arXiv:2309.14509)"
RING = "Ring Attention (arXiv:2310.01889)"
MEGATRON = "Megatron-LM, guide to context parallelism"
RUN = "run while this page was built"
LAB = "lab 06"

ROUNDING = 1e-12
RANKS, LONG = 8, 131_072
LLAMA = replace(presets.model("llama3-70b"), seq=LONG)
GPT3 = presets.model("gpt3-175b")


def long_job(way: str, *, model: Model = LLAMA) -> Job:
    """One long sequence of the 70B model on 8 ranks: ``tp``, ``sp``, ``ulysses`` or ``ring``."""
    over_tp = way in ("tp", "sp")
    tables = {
        "model": {"preset": "llama3-70b", "seq": model.seq, "kv_heads": model.kv_heads},
        "train": {"sequence_parallel": way == "sp"},
        "parallel": {"tp": RANKS} if over_tp else {"cp": RANKS, "context": way},
    }
    return from_dict(tables)


def sent_gb(way: str, *, kv_heads: int = LLAMA.kv_heads) -> float:
    """GB that a rank sends forward for one layer."""
    job = long_job(way, model=replace(LLAMA, kv_heads=kv_heads))
    return sent_bytes_of_layer(job, phases=("forward",)) / GB


def kept_gib(model: Model, *, tp: int = 1, sequence: bool = False, **more: str) -> float:
    """GiB that all layers keep on a rank, one sequence, scores kept too."""
    setting = Setting(seq=model.seq, tp=tp, sequence_parallel=sequence, **more)  # type: ignore[arg-type]
    return model.layers * layer_bytes(model, setting=setting) / GIB


@claim(
    "C6.1-a",
    says="With long sequences, activations take much memory.",
    registered=EXACT,
    sources=(KORTHIKANTI,),
)
def _activations() -> Finding:
    def kept(seq: int, *, flash: bool) -> float:
        setting = Setting(seq=seq, flash_attention=flash)
        return LLAMA.layers * layer_bytes(replace(LLAMA, seq=seq), setting=setting)

    states = ZERO.total * count(LLAMA).total
    flash, scores = (kept(2 * LONG, flash=flash) / kept(LONG, flash=flash) for flash in (True, False))
    return Finding(
        f"One sequence of {LONG:,} positions of Llama 3 70B keeps {kept(LONG, flash=True) / TB:.1f} TB "
        f"with FlashAttention, against {states / TB:.1f} TB of model states. Twice the sequence keeps "
        f"{flash:.1f} times as much; where the attention scores are kept as well, {scores:.1f} times.",
        [
            Reading("more than the model's states", kept(LONG, flash=True) > states),
            Reading("in proportion to the sequence, at the least", flash > 1.99),
        ],
    )


@claim(
    "C6.1-b",
    says="Sequence parallelism cuts the sequence: (batch, seq, dim) becomes (batch, seq/N, dim).",
    registered=EXACT,
    sources=(KORTHIKANTI, EARLIER),
)
def _cut() -> Finding:
    runs = [shard_range(LONG, RANKS, rank) for rank in range(RANKS)]
    return Finding(
        "Each rank has a run of positions, and of each of them all features.",
        [Reading("equal runs", {stop - start for start, stop in runs} == {LONG // RANKS})],
    )


@claim(
    "C6.1-c",
    says="Attention needs the whole sequence, so the hidden states are all-gathered.",
    registered=ASSUMPTION,
    sources=(KORTHIKANTI, ULYSSES, RING, RUN),
)
def _gather() -> Finding:
    from pdtlib.book.claims import sequence_snippet as snippet

    many = {way: sent_gb(way, kv_heads=LLAMA.heads) for way in ("ulysses", "ring")}
    right = snippet.errors()["slice"] < ROUNDING
    return Finding(
        "One way, that of Megatron-LM. But only keys and values must be seen by all; queries can stay. "
        f"Forward, for one layer of Llama 3 70B, {LONG:,} positions on {RANKS} ranks, each rank sends "
        f"{sent_gb('sp'):.2f} GB by tensor parallelism with or without SP, {sent_gb('ulysses'):.2f} GB by "
        f"Ulysses and {sent_gb('ring'):.2f} GB in a ring of keys and values. Without grouped heads it "
        f"would be {many['ulysses']:.2f} and {many['ring']:.2f} GB.",
        [
            Reading("as one way that gives the right values", right),
            Reading(
                "as what attention needs: more than keys and values",
                snippet.errors()["local"] > ROUNDING,
            ),
        ],
    )


@claim(
    "C6.1-d",
    says="(Code.) Every rank then computes attention on the gathered hidden states.",
    registered=IMPRECISE,
    sources=(KORTHIKANTI, RUN),
)
def _replicated() -> Finding:
    from pdtlib.book.claims import sequence_snippet as snippet

    whole = 2 * LONG * LLAMA.hidden
    work = snippet.work_shares()
    return Finding(
        "With whole weights on every rank, all ranks do the whole attention: the work of one is done N "
        f"times, and each holds the gathered activations, {whole / GB:.2f} GB in the example above. It "
        "saves nothing inside attention. It does when each rank has some of the heads (then "
        f"{percent_text(work['heads'], digits=0)} of the work on {snippet.RANKS} ranks), or keeps its own "
        "queries.",
        [
            Reading("as a way to divide the work of attention", work["gathered"] < 1),
            Reading("as a way to the right values", snippet.errors()["slice"] < ROUNDING, usual=False),
        ],
    )


@claim(
    "C6.1-e",
    says="(Code.) A reduce-scatter brings the attention's output back into the cut state.",
    registered=WRONG,
    sources=(RUN, LAB, "Megatron-LM, source of its mappings"),
)
def _reduce_scatter() -> Finding:
    from pdtlib.book.claims import sequence_snippet as snippet

    output, gradient = snippet.printed_ratios()
    return Finding(
        f"A reduce-scatter adds over the ranks. Here all have the same whole output, so on {snippet.RANKS} "
        f"ranks it comes out {output:.1f} times too large, and the input's gradient {gradient:.1f} times. "
        "A slice is right. A reduce-scatter is right where each rank has some heads and their rows of "
        "W_O, whose products are parts of a sum.",
        [
            Reading("the output", abs(output - 1) < ROUNDING),
            Reading("the gradient of the input", abs(gradient - 1) < ROUNDING),
        ],
    )


@claim(
    "C6.1-f",
    says="(Code.) The class is a complete attention layer with sequence parallelism.",
    registered=IMPRECISE,
    sources=(KORTHIKANTI, RUN),
)
def _complete() -> Finding:
    from pdtlib.book.claims import sequence_snippet as snippet

    kept = snippet.share_kept_of_gathered()
    return Finding(
        "It has no backward pass. The gather and the scatter must be autograd Functions, each the other's "
        "reverse. And what was gathered must not be kept: autograd keeps all of it "
        f"({percent_text(kept, digits=0)}) for the weights' gradient, unless the layer saves its slice and "
        "gathers again. In the sense of Megatron-LM, sequence parallelism is about norms, dropout and "
        "residual sums, not about attention.",
        [
            Reading("with the memory that it is meant to save", kept < 1),
            Reading(
                "as a forward pass, with a slice at the end",
                snippet.errors()["slice"] < ROUNDING,
                usual=False,
            ),
        ],
    )


@claim(
    "C6.2-a",
    says="Sequence parallelism is usually used together with tensor parallelism.",
    registered=EXACT,
    sources=(KORTHIKANTI, "Megatron-LM, which refuses it without tensor parallelism"),
)
def _together() -> Finding:
    tp, sp = (kept_gib(GPT3, tp=8, sequence=sequence) for sequence in (False, True))
    return Finding(
        "Megatron-LM's kind needs it: it divides what tensor parallelism leaves whole, over the same "
        f"ranks. For GPT-3 on 8 ranks, one sequence and all layers, {tp:.1f} GiB of activations become "
        f"{sp:.1f}.",
        [
            Reading("on its own it divides nothing", kept_gib(GPT3, sequence=True) == kept_gib(GPT3)),
            Reading("with tensor parallelism it does", sp < tp),
        ],
    )


@claim(
    "C6.2-b",
    says="Tensor parallelism cuts the parameters, sequence parallelism the sequence.",
    registered=ASSUMPTION,
    sources=(KORTHIKANTI,),
)
def _what_is_cut() -> Finding:
    terms = layer_tensors(GPT3, setting=Setting(seq=GPT3.seq, tp=8))
    sbh = GPT3.seq * GPT3.hidden
    scores = {"softmax output", "softmax dropout mask", "softmax dropout output"}
    outside = sum(term.bytes for term in terms if term.split == "sequence") / sbh
    inside = 8 * sum(term.bytes for term in terms if term.split == "tensor" and term.name not in scores) / sbh
    jobs = {
        "alone": from_dict({"model": {"preset": "llama3-70b"}}),
        "tp": long_job("tp"),
        "sp": long_job("sp"),
    }
    held = {name: sum(spec.numel for spec in rank_tensors(job, 0)) for name, job in jobs.items()}
    return Finding(
        "For the parameters that is all. But tensor parallelism cuts activations, too: the heads and the "
        f"MLP's inside. Of a layer's 34 sbh bytes it divides {inside:.0f} and leaves {outside:.0f} whole, "
        "between the regions. These are what sequence parallelism divides.",
        [
            Reading(
                "of the parameters: TP divides them, SP no further",
                held["tp"] < held["alone"] and held["sp"] == held["tp"],
            ),
            Reading("of the activations", inside == 0),
        ],
    )


@claim(
    "C6.2-c",
    says="The two are orthogonal.",
    registered=WRONG,
    sources=(MEGATRON, ULYSSES),
)
def _orthogonal() -> Finding:
    gpus = {way: long_job(way).parallel.world_size for way in ("tp", "sp")}
    both = Parallel(tp=8, cp=8).world_size
    return Finding(
        f"Sequence parallelism uses the ranks of the tensor-parallel group, {gpus['tp']} GPUs with it and "
        "without. It turns each all-reduce into an all-gather and a reduce-scatter. What has a dimension "
        f"of its own, a factor in the number of GPUs, is context parallelism: 8 × 8 ranks are {both}. "
        "Ulysses has a group of its own, but shares the heads with tensor parallelism.",
        [Reading("a dimension of its own", gpus["sp"] != gpus["tp"])],
    )
