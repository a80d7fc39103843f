"""Run cases of the matrix on real processes: ``make matrix`` runs all of it and writes the report.

python tests/engine/matrix.py --out benchmarks/results/matrix.json [--minutes 15] [--covering]
"""

import argparse
import gc
import json
import platform
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import matrix_cases
import torch
import torch.distributed as dist
from matrix_cases import Case, job_of, name_of, ranks
from matrix_run import Reference, one_process, reference_key, run

from pdtlib.engine.dist import RankError, spawn

SEED = 0
TOGETHER = 30
"""Cases that one set of processes runs; one that breaks off takes the others of its set with it."""


def references(cases: list[Case]) -> dict[str, Reference]:
    """One process's results for every model that the cases train."""
    found: dict[str, Reference] = {}
    for job in map(job_of, cases):
        key = reference_key(job)
        if key not in found:
            found[key] = one_process(job)
    return found


def run_all(
    cases: list[Case], expected: dict[str, Reference], stop: float
) -> tuple[list[list[str] | None], float]:
    """As one rank: what is wrong with each case, None for those that time did not suffice for; seconds of
    processor time."""
    gc.collect()
    gc.freeze()  # what torch has imported is not looked through again after every case
    found: list[list[str] | None] = []
    for case in cases:
        late = torch.tensor(time.time() > stop)
        if dist.is_initialized():
            dist.broadcast(late, 0)
        if late:
            found.append(None)
            continue
        try:
            found.append(run(case, expected[reference_key(job_of(case))]))
        except Exception:
            if dist.get_world_size() > 1:
                raise RuntimeError(f"in case {name_of(case)}") from sys.exception()
            found.append([traceback.format_exc()])
        end_groups()
    return found, time.process_time()


def end_groups() -> None:
    """Destroy the groups of a case, each of which has threads of its own that would run on."""
    gc.collect()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def check(cases: list[Case], *, seconds: float) -> tuple[dict[str, list[str] | None], float]:
    """Name of each case -> what is wrong, of any rank, None where it was not run; and processor time."""
    expected = references(cases)
    stop, verdicts, cpu_s = time.time() + seconds, {}, time.process_time()
    for size in (1, 2, 4, 8):
        mine = [case for case in cases if ranks(case) == size]
        if not mine:
            continue
        needed = {reference_key(job_of(case)) for case in mine}
        known = {key: value for key, value in expected.items() if key in needed}
        for some in (mine[at : at + TOGETHER] for at in range(0, len(mine), TOGETHER)):
            try:
                by_rank = spawn(
                    run_all, size, some, known, stop, timeout_s=seconds + 300, group_timeout_s=120
                )
            except (RankError, TimeoutError) as error:
                text = str(error)
                verdicts |= {name_of(case): [text] if name_of(case) in text else None for case in some}
                continue
            cpu_s += sum(used for _, used in by_rank)
            for case, *found in zip(some, *(verdict for verdict, _ in by_rank), strict=True):
                lines = [f"rank {rank}: {line}" for rank, one in enumerate(found) for line in one or []]
                verdicts[name_of(case)] = None if found[0] is None else lines
    return verdicts, cpu_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after so long, and say what is left"
    )
    parser.add_argument("--covering", action="store_true", help="only the part that CI runs")
    options = parser.parse_args()
    everything = list(matrix_cases.every())
    chosen = (matrix_cases.covering if options.covering else matrix_cases.full)(everything, seed=SEED)
    began = time.time()
    verdicts, cpu_s = check(chosen, seconds=60 * options.minutes)
    done = {name: found for name, found in verdicts.items() if found is not None}
    report = {
        "what": "models x layouts x settings in float64 against one process, 3 steps with clipping: losses, "
        "norms, every parameter and both moments within 1e-9; bytes held and sent equal to the plan",
        "torch": torch.__version__,
        "system": platform.platform(),
        "seconds": round(time.time() - began),
        "processor_seconds": round(cpu_s),
        "valid_combinations": len(everything),
        "chosen": len(chosen),
        "run": len(done),
        "passed": sum(not found for found in done.values()),
        "run_by_processes": dict(
            sorted(Counter(str(ranks(case)) for case in chosen if name_of(case) in done).items())
        ),
        "levels": {
            factor: dict(Counter(str(case[factor]) for case in chosen if name_of(case) in done))
            for factor in matrix_cases.FACTORS
        },
        "failed": {name: found for name, found in done.items() if found},
        "not_run": [name for name, found in verdicts.items() if found is None],
        "cases": sorted(done),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['passed']} of {report['run']} cases passed, {len(report['not_run'])} were not run")
    return 1 if report["failed"] or report["not_run"] else 0


if __name__ == "__main__":
    sys.exit(main())
