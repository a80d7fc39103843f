"""Run cases of the matrix on real processes: ``make matrix`` runs all of it and writes the report.

python tests/engine/matrix.py --out benchmarks/results/matrix.json [--minutes 15] [--covering]

The report is written after every set of cases. Cases that it says have passed, with the same engine and plan,
are not run again, so what time did not suffice for can follow later.
"""

import argparse
import faulthandler
import gc
import json
import platform
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import matrix_cases
import torch
import torch.distributed as dist
from matrix_cases import Case, job_of, name_of, ranks
from matrix_run import Reference, one_process, reference_key, run

from pdtlib.engine.dist import RankError, spawn

SEED = 0
STUCK_S = 90.0
"""A rank that is in a case for so long says on stderr where it stands."""
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
        faulthandler.dump_traceback_later(STUCK_S)
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
    faulthandler.cancel_dump_traceback_later()
    return found, time.process_time()


def end_groups() -> None:
    """Destroy the groups of a case, each of which has threads of its own that would run on.

    A group that was made by its own ranks alone stays: torch names it by a hash of its ranks, so the next one
    of the same ranks would find this one's addresses in the store, and wait for ever.
    """
    gc.collect()
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        if group is not dist.group.WORLD and name.isdecimal():
            dist.destroy_process_group(group)


Verdicts = dict[str, list[str] | None]
"""Name of each case -> what is wrong, of any rank; None where it was not run."""


def in_sets(cases: list[Case], *, seconds: float) -> Iterator[tuple[Verdicts, float]]:
    """The verdicts on one set of cases after the other, and the processor time that each took."""
    expected = references(cases)
    stop = time.time() + seconds
    for size in (1, 2, 4, 8):
        mine = [case for case in cases if ranks(case) == size]
        needed = {reference_key(job_of(case)) for case in mine}
        known = {key: value for key, value in expected.items() if key in needed}
        for some in (mine[at : at + TOGETHER] for at in range(0, len(mine), TOGETHER)):
            try:
                by_rank = spawn(
                    run_all, size, some, known, stop, timeout_s=seconds + 300, group_timeout_s=120
                )
            except (RankError, TimeoutError) as error:
                text = str(error)
                yield {name_of(case): [text] if name_of(case) in text else None for case in some}, 0.0
                continue
            verdicts: Verdicts = {}
            for case, *found in zip(some, *(verdict for verdict, _ in by_rank), strict=True):
                lines = [f"rank {rank}: {line}" for rank, one in enumerate(found) for line in one or []]
                verdicts[name_of(case)] = None if found[0] is None else lines
            yield verdicts, sum(used for _, used in by_rank)


def check(cases: list[Case], *, seconds: float) -> Verdicts:
    """The verdicts on all cases."""
    return {
        name: found for verdicts, _ in in_sets(cases, seconds=seconds) for name, found in verdicts.items()
    }


def sources() -> dict[str, str]:
    """git's names of what the verdicts depend on, as of the last commit."""
    root = Path(__file__).parents[2]
    folders = ("pdtlib/engine", "pdtlib/plan")
    return {
        folder: subprocess.check_output(["git", "rev-parse", f"HEAD:{folder}"], cwd=root, text=True).strip()
        for folder in folders
    }


def report_on(chosen: list[Case], verdicts: Verdicts, *, seconds: float, cpu_s: float) -> dict[str, Any]:
    """What the report says when these verdicts are there."""
    done = {name: found for name, found in verdicts.items() if found is not None}
    return {
        "what": "models x layouts x settings in float64 against one process, 3 steps with clipping: losses, "
        "norms, every parameter and both moments within 1e-9; bytes held and sent equal to the plan",
        "sources": sources(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "seconds": round(seconds),
        "processor_seconds": round(cpu_s),
        "valid_combinations": len(list(matrix_cases.every())),
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
        "not_run": [name for name in map(name_of, chosen) if name not in done],
        "cases": sorted(done),
    }


def earlier(path: Path) -> dict[str, Any]:
    """The report at ``path`` where it is about the same sources, else an empty one."""
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if report.get("sources") != sources():
        return {"cases": [], "failed": {}, "seconds": 0, "processor_seconds": 0}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after so long, and say what is left"
    )
    parser.add_argument("--covering", action="store_true", help="only the part that CI runs")
    options = parser.parse_args()
    choose = matrix_cases.covering if options.covering else matrix_cases.full
    chosen = choose(list(matrix_cases.every()), seed=SEED)
    before = earlier(options.out)
    verdicts: Verdicts = {name: [] for name in before["cases"] if name not in before["failed"]}
    cases = [case for case in chosen if name_of(case) not in verdicts]
    began, cpu_s = time.time() - before["seconds"], before["processor_seconds"] + time.process_time()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for some, used in chain([({}, 0.0)], in_sets(cases, seconds=60 * options.minutes)):
        verdicts |= some
        cpu_s += used
        report = report_on(chosen, verdicts, seconds=time.time() - began, cpu_s=cpu_s)
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['passed']} of {report['run']} cases passed, {len(report['not_run'])} were not run")
    return 1 if report["failed"] or report["not_run"] else 0


if __name__ == "__main__":
    sys.exit(main())
