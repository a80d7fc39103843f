"""The article's section 7.2: its DeepSpeed file, key by key, by DeepSpeed's own verdicts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.plan.flops import training_flops
from pdtlib.plan.job import from_dict
from pdtlib.plan.lint import Verdict, lint_deepspeed
from pdtlib.plan.lint.article import KEYS, as_yaml
from pdtlib.plan.planner.article import TABLE
from pdtlib.plan.presets import GPUS
from pdtlib.plan.schedule import Costs, build, simulate
from pdtlib.plan.states import ZERO
from pdtlib.plan.units import GB, percent_text

REGISTER = Register()
claim = REGISTER.claim

CONFIG = "DeepSpeed 0.19, runtime/config.py"
ZERO_CONFIG = "DeepSpeed 0.19, runtime/zero/config.py"
PIPE = "DeepSpeed 0.19, runtime/pipe"
RUN = "the linter, whose verdicts a test compares with DeepSpeed's"
PCIE = 32 * GB
"""One direction of PCI Express 4.0 with 16 lanes."""
SLOW = 0.2  # of the computation


def verdicts(config: dict[str, Any]) -> dict[str, Verdict]:
    """Verdicts on a file by key; the last one where a key has several."""
    return {verdict.key: verdict for verdict in lint_deepspeed(json.dumps(config))}


@cache
def article() -> dict[str, Verdict]:
    """The verdicts on the article's keys, as JSON."""
    return verdicts(KEYS)


def starts(text: str) -> bool:
    """Whether DeepSpeed starts with the file."""
    return all(verdict.verdict != "rejected" for verdict in lint_deepspeed(text))


def zero(stage: int) -> dict[str, Any]:
    """The article's keys at another ZeRO stage."""
    return {**KEYS, "zero_optimization": {**KEYS["zero_optimization"], "stage": stage}}


def _read(key: str) -> Reading:
    return Reading("DeepSpeed reads the key, and its value", article()[key].verdict == "ok")


@claim(
    "C7.2-a",
    says="A DeepSpeed configuration is YAML, under a key deepspeed.",
    registered=WRONG,
    sources=(CONFIG, RUN),
)
def _yaml() -> Finding:
    bare = {key: value for key, value in KEYS.items() if key != "tensor_parallel"}
    wrapped = json.dumps({"deepspeed": bare})
    return Finding(
        "DeepSpeed reads JSON or HJSON, or takes a dict. Under the wrapper it finds no batch size and stops. "
        "Other programs, such as a Trainer's configuration, wrap it so.",
        [
            Reading("as a YAML file", starts(as_yaml())),
            Reading("as JSON with the wrapper", starts(wrapped)),
        ],
    )


@claim(
    "C7.2-b", says="train_micro_batch_size_per_gpu: 4", registered=EXACT, sources=("DeepSpeed's docs", RUN)
)
def _micro() -> Finding:
    return Finding("A key of that name, in sequences.", [_read("train_micro_batch_size_per_gpu")])


@claim("C7.2-c", says="gradient_accumulation_steps: 8", registered=EXACT, sources=(PIPE, RUN))
def _accumulation() -> Finding:
    return Finding(
        "A key of that name. With the pipeline engine it is the number of micro-batches in a step.",
        [_read("gradient_accumulation_steps")],
    )


@claim(
    "C7.2-d",
    says="The effective batch is 4 × 8 × DP.",
    registered=EXACT,
    sources=(PIPE, "arithmetic"),
)
def _effective() -> Finding:
    def fits(dp: int) -> bool:
        tables = {"train": {"micro_batch": 4, "global_batch": 4 * 8 * dp}, "parallel": {"dp": dp}}
        job = from_dict({"model": {"preset": "llama2-70b"}, **tables})
        return job.gradient_accumulation == 8

    sequences = 4 * 8 * TABLE[2].dp
    return Finding(
        "The data-parallel degree counts, not the number of GPUs, which the documentation names and which is "
        f"the same only without other cuts. For the 70B row: {sequences} sequences, {sequences * 4096:,} "
        "tokens at 4,096 each.",
        [Reading("for the table's rows", all(fits(row.dp) for row in TABLE))],
    )


@claim("C7.2-e", says="zero_optimization.stage: 3", registered=ASSUMPTION, sources=(ZERO_CONFIG, PIPE, RUN))
def _stage() -> Finding:
    piped = verdicts({**KEYS, "pipeline": {"stages": 4}})
    return Finding(
        "A valid stage. With a pipeline, which this file also asks for, it is refused.",
        [
            _read("zero_optimization.stage"),
            Reading("together with 4 pipeline stages", piped["zero_optimization.stage"].verdict == "ok"),
        ],
    )


@claim(
    "C7.2-f",
    says="overlap_comm: true lets communication and computation overlap.",
    registered=EXACT,
    sources=(ZERO_CONFIG, RUN),
)
def _overlap() -> Finding:
    return Finding(
        "The reduction of gradients beside the backward pass, at stage 3 also the gathers. Stage 3 has it on "
        "unless told otherwise, the others off.",
        [_read("zero_optimization.overlap_comm")],
    )


@claim("C7.2-g", says="contiguous_gradients: true", registered=EXACT, sources=(ZERO_CONFIG, RUN))
def _contiguous() -> Finding:
    return Finding("A key of that name, and the default.", [_read("zero_optimization.contiguous_gradients")])


@claim("C7.2-h", says="sub_group_size: 1e9", registered=EXACT, sources=(ZERO_CONFIG, RUN))
def _sub_group() -> Finding:
    return Finding(
        "A key that stage 3 and offloading read; 10⁹ is the default. In YAML see C7.2-r.",
        [_read("zero_optimization.sub_group_size")],
    )


@claim(
    "C7.2-i",
    says="reduce_bucket_size: 5e8, the size of a communication bucket.",
    registered=EXACT,
    sources=(ZERO_CONFIG, RUN),
)
def _bucket() -> Finding:
    size = KEYS["zero_optimization"]["reduce_bucket_size"]
    return Finding(
        f"The default. It counts elements, not bytes: {2 * size / GB:g} GB in 16 bit, {4 * size / GB:g} GB "
        "in fp32. In YAML see C7.2-r.",
        [_read("zero_optimization.reduce_bucket_size")],
    )


@claim("C7.2-j", says="allgather_bucket_size: 5e8", registered=IMPRECISE, sources=(ZERO_CONFIG, RUN))
def _gather_bucket() -> Finding:
    key = "zero_optimization.allgather_bucket_size"
    return Finding(
        "Stages 1 and 2 read it. This file asks for stage 3, where it changes nothing: the keys there are "
        "stage3_prefetch_bucket_size, stage3_max_live_parameters, stage3_max_reuse_distance and "
        "stage3_param_persistence_threshold.",
        [
            Reading("at the file's own stage", article()[key].verdict == "ok"),
            Reading(
                "at stages 1 and 2", all(verdicts(zero(n))[key].verdict == "ok" for n in (1, 2)), usual=False
            ),
        ],
    )


@claim("C7.2-k", says="cpu_offload: false", registered=IMPRECISE, sources=(ZERO_CONFIG, RUN))
def _offload_key() -> Finding:
    found = article()["zero_optimization.cpu_offload"]
    return Finding(
        f"An old name, still understood with a warning. Now: {found.message.removeprefix('use ')}, and at "
        "stage 3 offload_param.",
        [
            Reading("under its present name", found.verdict == "ok"),
            Reading("under a name that is understood", found.verdict == "deprecated", usual=False),
        ],
    )


@claim(
    "C7.2-l",
    says="Offloading to the CPU saves GPU memory, but is slow.",
    registered=ASSUMPTION,
    sources=("ZeRO-Offload (arXiv:2101.06840)", "PCI Express 4.0"),
)
def _offload() -> Finding:
    row = TABLE[0]
    moved_s = 2 * ZERO.grads * row.params / row.dp / PCIE  # gradients down, parameters up

    def share(tokens: int) -> float:
        flops = training_flops(row.params, num_tokens=tokens)
        return moved_s / (flops / (0.5 * GPUS["A100-SXM4-80"].peak_flops))

    few, many = share(512), share(4 * 8 * 4096)
    return Finding(
        f"It moves {ZERO.optimizer} bytes a parameter to the host. For 7B on 8 GPUs gradients and parameters "
        f"then take {1000 * moved_s:.0f} ms a step over PCIe: {percent_text(few, digits=0)} of the "
        f"computation for 512 tokens a GPU, {percent_text(many)} for the file's 131,072. The CPU's Adam "
        "comes on top.",
        [
            Reading("it saves memory", ZERO.optimizer > 0),
            Reading("slow, with 512 tokens a GPU and step", few > SLOW),
            Reading("slow, with the file's batch", many > SLOW),
        ],
    )


@claim("C7.2-m", says="tensor_parallel: {size: 8}", registered=WRONG, sources=(CONFIG, RUN))
def _tensor() -> Finding:
    right = {"train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 8}}
    assert starts(json.dumps(right))
    found = article()["tensor_parallel.size"]
    return Finding(
        f"DeepSpeed refuses to start: {found.message} It means tensor parallelism that DeepSpeed makes by "
        "itself for some models.",
        [_read("tensor_parallel.size")],
    )


@claim(
    "C7.2-n",
    says="pipeline_parallel: {size: 4, num_stages: 4}",
    registered=WRONG,
    sources=(CONFIG, PIPE, RUN),
)
def _pipeline() -> Finding:
    return Finding(
        "There is no such section. It is passed over in silence, so there is no pipeline. Its degree comes "
        "from PipelineModule(layers, num_stages=4) in the program; the file's section is called pipeline.",
        [_read("pipeline_parallel")],
    )


@claim(
    "C7.2-o",
    says='pipeline_type: "1f1b_interleaved"',
    registered=WRONG,
    sources=(PIPE, "Microsoft nnScaler", "Megatron-LM's options", RUN),
)
def _interleaved() -> Finding:
    return Finding(
        "Passed over. DeepSpeed's only schedule for training is 1F1B. nnScaler has a scheduler of this name; "
        "in Megatron-LM the option is --num-layers-per-virtual-pipeline-stage, in torch "
        "ScheduleInterleaved1F1B.",
        [_read("pipeline_type")],
    )


@claim(
    "C7.2-p",
    says="num_chunks: 2, the chunks of interleaving.",
    registered=WRONG,
    sources=(CONFIG, "Megatron-LM, model_parallel_config.py", RUN),
)
def _chunks() -> Finding:
    return Finding(
        "Passed over. Megatron-LM calls it virtual_pipeline_model_parallel_size. In torchgpipe and PiPPy, "
        "chunks were micro-batches.",
        [_read("num_chunks")],
    )


@claim(
    "C7.2-q",
    says="(Omission.) No bf16 or fp16, no optimizer, no clipping.",
    registered=IMPRECISE,
    sources=("DeepSpeed's docs", RUN),
)
def _omission() -> Finding:
    in_fp32 = any(not v.key and "fp32" in v.message for v in lint_deepspeed(json.dumps(KEYS)))
    return Finding(
        "Without the section bf16 DeepSpeed trains in fp32, against section 1.1, which counts 2 bytes a "
        "parameter. An optimizer may also come from the program.",
        [
            Reading("trains in 16 bit", not in_fp32),
            Reading(
                "starts without these sections",
                starts('{"train_micro_batch_size_per_gpu": 4}'),
                usual=False,
            ),
        ],
    )


@claim("C7.2-r", says="1e9 and 5e8 are numbers in the file.", registered=WRONG, sources=(CONFIG, RUN))
def _numbers() -> Finding:
    found = {verdict.key: verdict.verdict for verdict in lint_deepspeed(as_yaml())}
    names = [f"zero_optimization.{n}" for n in ("sub_group_size", "reduce_bucket_size")]
    return Finding(
        "YAML 1.1, which PyYAML reads, wants 5.0e+8; 5e8 is a text there, and DeepSpeed refuses it. In JSON "
        "5e8 is a number.",
        [Reading("as YAML, as it is printed", all(found[name] == "ok" for name in names))],
    )


@claim(
    "C7.2-s",
    says="(Implied.) Accumulation of 8 with 4 stages is a tuned setting.",
    registered=IMPRECISE,
    sources=("simulated while this page was built",),
)
def _tuned() -> Finding:
    costs = Costs(forward=1, backward_input=2, backward_weight=0)

    def idle(micro_batches: int, chunks: int = 1) -> float:
        name = "interleaved" if chunks > 1 else "1f1b"
        table = build(name, stages=4, microbatches=micro_batches, chunks=chunks if chunks > 1 else None)
        return simulate(table, costs).bubble_fraction

    needed = next(m for m in range(1, 99) if idle(m) <= 0.1)
    return Finding(
        f"8 micro-batches in 4 stages idle for {percent_text(idle(8))} of the time, and the article's own "
        f"section 8 calls for work above 20 %. Interleaved it would be {percent_text(idle(8, 2))}. At most "
        f"10 % takes {needed} micro-batches with 1F1B.",
        [
            Reading("with 1F1B, which DeepSpeed has", idle(8) <= 0.2),
            Reading("interleaved with 2 chunks", idle(8, 2) <= 0.2, usual=False),
        ],
    )
