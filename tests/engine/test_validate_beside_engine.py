"""What plan.validate refuses is what the engine cannot train, and nothing else: a grid of jobs, built dry.

The engine's own check is taken away first, so that its parts must refuse by themselves.
"""

import itertools
import random
from typing import Any

import pytest

from pdtlib.engine import parallelize as composed
from pdtlib.engine.dry_run import dry_run
from pdtlib.plan.job import validate
from pdtlib.plan.spec import Hardware, Job, Model, MoE, Parallel, Train

LLAMA = {"layers": 4, "hidden": 48, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 60, "seq": 16,
         "activation": "swiglu"}  # fmt: skip
CHOICES: dict[str, list[dict[str, Any]]] = {
    # Each choice changes some fields: model, train, parallel.
    "model": [
        {}, {"activation": "gelu", "kv_heads": 4, "tied_embeddings": True}, {"kv_heads": 1}, {"kv_heads": 4},
        {"heads": 6, "kv_heads": 3, "head_dim": 8}, {"vocab": 61}, {"seq": 18}, {"seq": 20}, {"seq": 15},
        {"ffn": 63}, {"dropout": 0.1}, {"layers": 3}, {"moe": MoE(experts=4, top_k=2, ffn=32), "ffn": 32},
        {"heads": 3, "kv_heads": 3}, {"head_dim": 9}, {"qk_norm": True},
    ],
    "train": [
        {}, {"sequence_parallel": True}, {"recompute": "full", "recompute_layers": 1}, {"zero_stage": 3},
    ],
    "parallel": [
        {}, {"tp": 2}, {"tp": 4}, {"tp": 3}, {"cp": 2}, {"cp": 3}, {"cp": 2, "context": "ulysses"},
        {"cp": 4, "context": "ulysses"}, {"tp": 2, "cp": 2, "context": "ulysses"}, {"tp": 2, "cp": 2},
        {"dp": 2, "ep": 2}, {"dp": 3, "ep": 3}, {"dp": 2, "ep": 4}, {"pp": 2}, {"pp": 5}, {"pp": 2, "vpp": 2},
        {"pp": 2, "schedule": "zb-v"}, {"pp": 2, "schedule": "dualpipe"}, {"pp": 3, "schedule": "dualpipe"},
        {"pp": 2, "vpp": 3}, {"pp": 2, "tp": 4},
    ],
}  # fmt: skip
RANDOM_CASES = 24


def cases() -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Every choice alone, or beside the layout that makes something of it, and a sample of the product."""
    models, trains, layouts = CHOICES.values()
    dense = [layout for layout in layouts if "ep" not in layout]  # without experts the engine reads no ep
    split = {"dropout", "seq"}  # what context parallelism minds
    alone = [(model, {}, {"cp": 2} if split & set(model) else {"tp": 2}) for model in models]
    alone += [({}, {}, layout) for layout in dense]
    product = [
        case for case in itertools.product(models, trains, layouts) if case[2] in dense or "moe" in case[0]
    ]
    return [*alone, *random.Random(0).sample(product, RANDOM_CASES)]


def job_of(model: dict[str, Any], train: dict[str, Any], parallel: dict[str, Any]) -> Job:
    spread = Parallel(**parallel)
    batch = {"micro_batch": 1, "global_batch": spread.dp * min(2, spread.pp), "precision": "fp32"}
    return Job(
        model=Model(**{**LLAMA, **model}),
        train=Train(**batch, **train),
        parallel=spread,
        hardware=Hardware(gpu="cpu"),
    )


def engine_refuses(job: Job) -> str:
    """What the engine's parts say against the last rank of the job; "" where they train it."""
    try:
        dry_run(job, rank=job.parallel.world_size - 1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore")
def test_validate_refuses_what_the_engine_cannot_train(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [job_of(*case) for case in cases()]
    planned = [validate(job) for job in found]
    monkeypatch.setattr(composed, "validate", lambda job: [])
    wrong = []
    for job, problems in zip(found, planned, strict=True):
        reason = engine_refuses(job)
        if bool(problems) != bool(reason):
            wrong.append((job.model, job.train, job.parallel, problems, reason))
    assert not wrong, f"{len(wrong)} of {len(found)}, the first: {wrong[0]}"
    assert sum(map(bool, planned)) > 15
    assert sum(not problems for problems in planned) > 15
