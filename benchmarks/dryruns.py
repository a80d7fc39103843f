"""Dry runs of the article's layouts, rank by rank beside the plan.

    python benchmarks/dryruns.py [ROW ...] [--out benchmarks/results/dryruns.json]

For a rank of the first, a middle and the last stage of each layout the real engine is built on fake tensors
(:mod:`pdtlib.engine.dry_run`) and runs a step. Bytes of parameters, gradients and optimizer states, and calls
and bytes of every kind of message, must equal the plan's; what is kept for backward passes must be within
2 % of it. Exits with 1 where they are not.

The rows are the article's table of recommended layouts (section 7.1) and its 1,024 GPUs of section 5.1, with
its micro-batches (section 7.2: 4 sequences, 8 a step). It names sizes, not shapes; the shapes here are
presets of that size. For the 1,024 GPUs it names neither model nor ZeRO stage: 175B and 1 are ours.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pdtlib.engine.dry_run import dry_run
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.ranks import ARTICLE_ORDER, rank_at
from pdtlib.plan.spec import Job

ROWS: dict[str, tuple[str, dict[str, int], int]] = {
    # name: preset, degrees, ZeRO stage
    "7B": ("llama2-7b", {"dp": 8}, 2),
    "13B": ("llama2-13b", {"tp": 2, "dp": 8}, 2),
    "70B": ("article-70b", {"tp": 8, "pp": 4, "dp": 4}, 3),
    "175B": ("gpt3-175b", {"tp": 8, "pp": 8, "dp": 8}, 3),
    "530B": ("mt-nlg-530b", {"tp": 8, "pp": 16, "dp": 8}, 3),
    "1,024 GPUs": ("gpt3-175b", {"tp": 8, "pp": 8, "dp": 16}, 1),
}
MICRO_BATCH, MICRO_BATCHES = 4, 8
STATES = ("params", "grads", "optimizer")


def job_of(row: str) -> Job:
    """The job of a row."""
    preset, degrees, stage = ROWS[row]
    train = {
        "micro_batch": MICRO_BATCH,
        "global_batch": MICRO_BATCH * MICRO_BATCHES * degrees["dp"],
        "zero_stage": stage,
        "sequence_parallel": degrees.get("tp", 1) > 1,
        "recompute": "selective",
    }
    return from_dict({"model": {"preset": preset}, "train": train, "parallel": degrees})


def ranks_of(job: Job) -> list[int]:
    """The very first and last rank, and one in the middle of the pipeline and of the other axes."""
    degrees = {axis: getattr(job.parallel, axis) for axis in ARTICLE_ORDER}
    middle = {axis: degree // 2 for axis, degree in degrees.items()}
    return [0, rank_at(middle, parallel=job.parallel, order=ARTICLE_ORDER), job.parallel.world_size - 1]


def compare(job: Job, rank: int) -> dict[str, Any]:
    """What the engine's rank and the plan's hold and send; ``equal`` says whether that is the same."""
    begin = time.process_time()
    found = dry_run(job, rank=rank)
    seconds = time.process_time() - begin
    place, memory, expected = found["place"], found["memory"], found["planned"]
    planned = messages(job, place["pp"], data_rank=place["dp"] * job.parallel.cp + place["cp"])
    engine, plan = counted(found["comm"]), counted(message.row() for message in planned)
    kept, expected_kept = memory["activations"], expected["activations"]
    return {
        "rank": rank,
        "place": place,
        "equal": engine == plan and all(memory[name] == expected[name] for name in STATES),
        "states_bytes": {
            "engine": sum(memory[name] for name in STATES),
            "plan": sum(expected[name] for name in STATES),
        },
        "activation_bytes": {"engine": kept, "plan": expected_kept},
        "activations_agree": abs(kept / expected_kept - 1) < 0.02,
        "messages": {"engine": sum(engine.values()), "plan": sum(plan.values())},
        "kinds_of_messages": {"engine": len(engine), "plan": len(plan)},
        "sent_bytes": {
            "engine": sum(row["sent_bytes_per_rank"] for row in found["comm"]),
            "plan": sum(message.sent_bytes_per_rank for message in planned),
        },
        "processor_seconds": round(seconds, 1),
    }


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Calls by axis, collective, phase and message size."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[row["axis"], row["collective"], row["phase"], row["message_bytes"]] += row["count"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dryruns.json")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(exist_ok=True)
    report, equal = [], True
    for name in arguments.rows or ROWS:
        job = job_of(name)
        for rank in ranks_of(job):
            result = {"row": name, "world_size": job.parallel.world_size, **compare(job, rank)}
            equal = equal and result["equal"] and result["activations_agree"]
            print(json.dumps(result), flush=True)
            report.append(result)
            arguments.out.write_text(json.dumps({"rows": report}, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(0 if equal else 1)


if __name__ == "__main__":
    main()
