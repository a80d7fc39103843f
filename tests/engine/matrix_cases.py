"""Cases of the matrix: models, layouts and settings, all that can be combined and a part that covers pairs.

A case is one level of every factor. :func:`valid` says which combinations exist, :func:`covering` picks few
cases in which every pair of levels that can occur together does (:func:`for_ci` a cheaper part of them),
:func:`full` every model, layout and ZeRO
stage with the other factors dealt out so that each layout meets all of their levels.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job

Case = dict[str, Any]

GLOBAL_BATCH, SEQ = 8, 16

MODELS: dict[str, dict[str, Any]] = {
    # grouped heads, norms of queries and keys, a vocabulary that nothing divides
    "llama": {"activation": "swiglu", "kv_heads": 2, "ffn": 20, "vocab": 31, "qk_norm": True},
    # biases everywhere, learned positions, tied
    "gpt": {"activation": "gelu", "ffn": 24, "vocab": 36, "tied_embeddings": True},
    # odd sizes, biases of q, k and v alone, tied
    "odd": {"hidden": 15, "head_dim": 6, "activation": "swiglu", "ffn": 12, "vocab": 29, "biases": "qkv",
            "tied_embeddings": True},
    "dropout": {"activation": "gelu", "ffn": 24, "vocab": 33, "dropout": 0.2},
    "experts": {"activation": "swiglu", "vocab": 32, "moe": {"experts": 4, "top_k": 2, "ffn": 12}},
}  # fmt: skip

FACTORS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "dp": (1, 2, 4),
    "tp": (1, 2, 4),
    "pp": (1, 2, 4),
    "cp": (1, 2, 4),
    "ep": (1, 2, 4),
    "zero": ("0", "1", "2", "3", "3 kept"),
    "sequence": (False, True),
    "schedule": ("none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"),
    "recompute": ("none", "selective", "full"),
    "micro_batches": (1, 2, 4),
    "context": ("none", "ring", "ulysses"),
    "order": ("article", "megatron"),
}
AXES = ("dp", "tp", "pp", "cp", "ep")
CHUNKS = {"interleaved": 2, "zb-v": 2}


def ranks(case: Case) -> int:
    """Processes that a case needs."""
    return case["dp"] * case["tp"] * case["pp"] * case["cp"]


def valid(case: Case) -> bool:
    """Whether the levels can be combined on at most 8 processes."""
    tp, cp = case["tp"], case["cp"]
    kv_heads = MODELS[case["model"]].get("kv_heads", 4)
    return (
        ranks(case) <= 8
        and (case["schedule"] == "none") == (case["pp"] == 1)
        and (case["context"] == "none") == (cp == 1)
        and not (case["sequence"] and tp == 1)
        and (case["ep"] == 1 or (case["model"] == "experts" and case["dp"] * cp % case["ep"] == 0))
        and GLOBAL_BATCH % (case["dp"] * case["micro_batches"]) == 0
        and not (case["context"] == "ulysses" and max(kv_heads // tp, 1) % cp)
        # Dropout on a rank's own heads or positions has no counterpart in one process.
        and not (case["model"] == "dropout" and tp * cp > 1)
        and not (case["order"] == "megatron" and case["pp"] == 1)
    )


def job_of(case: Case) -> Job:
    """The job of a case, in fp32 as far as the plan knows."""
    pp = case["pp"]
    positions = pp * (CHUNKS.get(case["schedule"], 1) if pp > 1 else 1)
    model = {
        "layers": next(layers for layers in (3, 5, 8) if layers >= positions),
        "hidden": 16, "heads": 4, "seq": SEQ,
        **MODELS[case["model"]],
    }  # fmt: skip
    train = {
        "global_batch": GLOBAL_BATCH,
        "micro_batch": GLOBAL_BATCH // (case["dp"] * case["micro_batches"]),
        "precision": "fp32",
        "zero_stage": int(case["zero"][0]),
        "reshard_after_forward": not case["zero"].endswith("kept"),
        "sequence_parallel": case["sequence"],
        "recompute": case["recompute"],
    }
    parallel = {axis: case[axis] for axis in ("dp", "tp", "pp", "cp", "ep")}
    if pp > 1:
        parallel |= {"schedule": case["schedule"], "vpp": CHUNKS.get(case["schedule"], 1)}
    if case["cp"] > 1:
        parallel["context"] = case["context"]
    return from_dict({"model": model, "train": train, "parallel": parallel})


def name_of(case: Case) -> str:
    """A case in one line: what differs from the plainest."""
    axes = " ".join(f"{axis}{case[axis]}" for axis in AXES if case[axis] > 1)
    words = [case["model"], axes or "alone", f"zero{case['zero']}", f"m{case['micro_batches']}"]
    words += ["sp"] if case["sequence"] else []
    words += [case[name] for name in ("schedule", "context") if case[name] != "none"]
    words += [f"recompute {case['recompute']}"] if case["recompute"] != "none" else []
    return " ".join([*words, case["order"]] if case["order"] == "megatron" else words)


def every() -> Iterator[Case]:
    """Every valid case."""
    for levels in itertools.product(*FACTORS.values()):
        case = dict(zip(FACTORS, levels, strict=True))
        if valid(case):
            yield case


def pairs_of(case: Case) -> set[tuple[str, Any, str, Any]]:
    """The pairs of levels that a case covers."""
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(case, 2)}


def covering(cases: list[Case], *, seed: int = 0, tries: int = 60) -> list[Case]:
    """Few of ``cases`` in which every pair occurs that occurs in any of them.

    Greedy: of some cases that have a pair not yet covered, the one is taken that covers most of those for
    the processes that it needs.
    """
    draw = random.Random(seed)
    pairs = [pairs_of(case) for case in cases]
    where: dict[tuple[str, Any, str, Any], list[int]] = {}
    for index, found in enumerate(pairs):
        for pair in found:
            where.setdefault(pair, []).append(index)
    missing = dict.fromkeys(sorted(where, key=lambda pair: (len(where[pair]), str(pair))))
    chosen = []
    while missing:
        candidates = where[next(iter(missing))]
        best = max(
            draw.sample(candidates, min(tries, len(candidates))),
            key=lambda index: sum(pair in missing for pair in pairs[index]) / (ranks(cases[index]) + 2),
        )
        chosen.append(cases[best])
        for pair in pairs[best]:
            missing.pop(pair, None)
    return chosen


def is_small(case: Case) -> bool:
    """Up to 4 processes, without levels that other tests compare with one process just as strictly."""
    elsewhere = case["schedule"] in ("gpipe", "zb-h2") or case["zero"] == "3 kept"
    return ranks(case) <= 4 and not elsewhere


def for_ci(cases: list[Case], *, seed: int = 0, num_large: int = 4) -> list[Case]:
    """All pairs of small cases, and the cases on 8 processes that have the most of the others."""
    small = covering([case for case in cases if is_small(case)], seed=seed)
    covered = set().union(*map(pairs_of, small))
    large = [case for case in covering(cases, seed=seed) if ranks(case) == 8]
    chosen = list(small)
    for _ in range(num_large):
        best = max(large, key=lambda case: len(pairs_of(case) - covered))
        covered |= pairs_of(best)
        chosen.append(best)
    return chosen


def full(cases: list[Case], *, seed: int = 0) -> list[Case]:
    """A case for every model, layout and ZeRO stage, and for every layout all pairs of the other factors."""
    draw = random.Random(seed)
    outer, layout = ("model", *AXES, "zero"), ("dp", "tp", "pp", "cp")
    by_layout: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        by_layout.setdefault(tuple(case[name] for name in layout), []).append(case)
    chosen = []
    for group in by_layout.values():
        found = covering(group, seed=seed)
        seen = {tuple(case[name] for name in outer) for case in found}
        rest: dict[tuple[Any, ...], list[Case]] = {}
        for case in group:
            rest.setdefault(tuple(case[name] for name in outer), []).append(case)
        chosen += [*found, *(draw.choice(options) for key, options in rest.items() if key not in seen)]
    return chosen
