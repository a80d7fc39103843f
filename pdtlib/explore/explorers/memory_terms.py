"""What one GPU holds in the memory stack, part by part, and the job that the controls describe."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.explore import sizes
from pdtlib.explore.explorer import Values
from pdtlib.explore.precision import ACCOUNTINGS
from pdtlib.plan import presets, states
from pdtlib.plan.activations import layer_tensors
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.memory import recomputed_layer_bytes, setting_of, stage_memory
from pdtlib.plan.placement import rank_tensors
from pdtlib.plan.sharding import padded_numel

ARTICLE = "70b"
VOCAB_MULTIPLE = 128  # per tensor-parallel rank: the default of --make-vocab-size-divisible-by
SCORES = ("softmax output", "softmax dropout mask", "softmax dropout output", "log-sum-exp")
ATTENTION = ("attn_norm input", "q, k, v input", "q", "k", "v", "o input", "attention dropout mask")


def job_of(values: Values) -> Job:
    """The job of the controls; raises JobError if it cannot work."""
    if values["model"] == sizes.OWN:
        model = sizes.shape_of(values)
    else:
        name = "article-70b" if values["model"] == ARTICLE else values["model"]
        model = {"preset": name, "vocab": _vocab(name, values["tp"])}
    return from_dict(
        {
            "model": {**model, "seq": values["seq"]},
            "train": {
                "global_batch": values["micro_batch"] * values["dp"],
                "micro_batch": values["micro_batch"],
                "zero_stage": values["zero"],
                "recompute": values["recompute"],
                "sequence_parallel": values["sp"],
                "flash_attention": values["flash"],
                **ACCOUNTINGS[values["accounting"]],
            },
            "parallel": {"tp": values["tp"], "dp": values["dp"]},
            "hardware": {"gpu": values["gpu"]},
        }
    )


def _vocab(name: str, tp: int) -> int:
    """The preset's vocabulary, padded as Megatron-LM does where ``tp`` ranks cannot share it evenly."""
    vocab = presets.model(name).vocab
    return vocab if vocab % tp == 0 else padded_numel(vocab, VOCAB_MULTIPLE * tp)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU by part of the figure, and what the readouts say about them."""

    terms: dict[str, float]
    rank_params: float
    layers_bytes: float

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def states_bytes(self) -> float:
        return sum(self.terms[name] for name in ("params", "grads", "optimizer"))


def memory_of(values: Values, job: Job) -> Memory:
    """States by the chosen accounting; everything else as :mod:`pdtlib.plan.memory` has it."""
    if values["model"] == ARTICLE:
        rank_params = presets.ARTICLE_70B_PARAMS / job.parallel.tp
    else:
        rank_params = sum(spec.numel for spec in rank_tensors(job, 0))
    accounting = states.ACCOUNTINGS[values["accounting"]]
    held = states.zero_state_bytes(
        rank_params, dp=job.parallel.dp, stage=job.train.zero_stage, accounting=accounting
    )
    terms = {"params": held.params, "grads": held.grads, "optimizer": held.optimizer}
    layers = dict.fromkeys(("attention", "scores", "mlp", "inputs"), 0.0)
    for tensor in layer_tensors(job.model, setting=setting_of(job)):
        layers[_part_of(tensor.name)] += tensor.bytes * job.model.layers
    stage = stage_memory(job, 0)
    recomputed = recomputed_layer_bytes(job) if job.train.recompute == "full" else 0.0
    layers_bytes = sum(layers.values())
    outside = (
        stage.activations - layers_bytes - recomputed
    )  # inputs of final norm and head, embedding dropout
    terms |= layers | {"recomputed": recomputed, "loss": outside + stage.logits, "buffers": stage.buffers}
    return Memory(terms, rank_params, layers_bytes)


def _part_of(tensor: str) -> str:
    if tensor == "layer input":
        return "inputs"
    if tensor in SCORES:
        return "scores"
    return "attention" if tensor in ATTENTION else "mlp"
