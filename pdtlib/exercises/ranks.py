"""Torch exercises: the reader's code on real processes, with its traffic counted and its hangs explained."""

import faulthandler
import io
import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from pdtlib.engine.dist import RankError, spawn
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, captured, traced_line
from pdtlib.exercises.traffic import Traffic, counted

# After so long a call that still waits for another rank fails; generous, for busy machines.
GROUP_TIMEOUT_S = 20.0
TIMEOUT_S = 90.0
# How engine.dist says that a rank ended without a word.
DIED = "the process ended with exit code"
# A rank that computes for ever says where it is so long before it is ended.
TRACE_BEFORE_S = 2.0


class Hang(ReaderError):
    """The ranks waited for one another; ``case`` is the number of the case in which they did."""

    def __init__(self, text: str, *, case: int) -> None:
        super().__init__(text)
        self.case = case


@dataclass(frozen=True)
class RankResults:
    """What the grader's ``on_rank`` returned on one rank, case by case, and its first fault."""

    results: list[Any]
    fault: str


def grade_worlds(
    code: ReaderCode,
    grader: ModuleType,
    cases: Mapping[int, Sequence[Any]],
    *,
    allowed: tuple[str, ...],
) -> Iterator[Check]:
    """Run every case on its number of ranks, then yield the checks of ``grader.judge(case, results)``.

    ``results`` are those of one case, in rank order. The cases of a world size share their processes; when
    something goes wrong each gets processes of its own, so that one that dies hides nothing of the others.
    """
    for world_size, drawn in cases.items():
        printed = io.StringIO()
        groups: list[tuple[Sequence[Any], list[RankResults] | None]]
        try:
            with redirect_stdout(printed):
                groups = [(drawn, run(grader.__name__, code.source, world_size, drawn, allowed))]
            print(printed.getvalue(), end="")
        except Hang as hang:  # the rest would hang, too, and each hang takes its time
            print(printed.getvalue(), end="")
            name = f"{drawn[hang.case].title}: runs to the end"
            yield Check(name=name, passed=False, message=str(hang))
            return
        except ReaderError:
            groups = [([case], None) for case in drawn]
        for group, found in groups:
            try:
                found = found or run(grader.__name__, code.source, world_size, group, allowed)
            except ReaderError as error:
                name = f"{group[0].title}: runs to the end"
                yield Check(name=name, passed=False, message=str(error))
                continue
            faults = [f"Rank {rank}: {item.fault}" for rank, item in enumerate(found) if item.fault]
            if faults:
                name = f"{world_size} ranks: no call fails or is refused"
                yield Check(name=name, passed=False, message="\n".join(faults))
            for index, case in enumerate(group):
                yield from grader.judge(case, [item.results[index] for item in found])


def run(
    grader: str, source: str, world_size: int, cases: Sequence[Any], allowed: tuple[str, ...]
) -> list[RankResults]:
    """Call ``on_rank(code, case, traffic)`` of the module ``grader`` for every case, on every rank.

    Raises:
        ReaderError: the code raised on a rank, a process died, or ranks wait for one another.
    """
    with tempfile.TemporaryDirectory(prefix="pdt-ranks-") as folder:
        arguments = (grader, source, list(cases), allowed, folder, TIMEOUT_S - TRACE_BEFORE_S)
        try:
            return spawn(
                _on_rank, world_size, *arguments, timeout_s=TIMEOUT_S, group_timeout_s=GROUP_TIMEOUT_S
            )
        except (RankError, TimeoutError) as error:
            raise _explained(Path(folder), world_size, error) from None
        finally:
            for rank in range(world_size):
                printed = Path(folder, f"{rank}.printed")
                if printed.exists():
                    for line in printed.read_text(encoding="utf-8").splitlines():
                        print(f"[rank {rank}] {line}")


def _on_rank(
    grader: str, source: str, cases: list[Any], allowed: tuple[str, ...], folder: str, trace_after_s: float
) -> RankResults:
    rank = dist.get_rank()
    traffic = Traffic(allowed=allowed, log=Path(folder, f"{rank}.log"))
    # The older names of two collectives announce their successors at every call.
    warnings.simplefilter("ignore", FutureWarning)
    results = []
    busy = Path(folder, f"{rank}.busy").open("w", encoding="utf-8")  # noqa: SIM115 (open while the rank runs)
    faulthandler.dump_traceback_later(trace_after_s, file=busy)
    with Path(folder, f"{rank}.printed").open("w", encoding="utf-8") as echo:
        try:
            with captured(echo), counted(traffic):
                code = ReaderCode(source)
                for case in cases:
                    traffic.reset()
                    results.append(import_module(grader).on_rank(code, case, traffic))
                    traffic.write(case_done=True)
        except ReaderError as error:
            traffic.write(error=str(error))
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
    return RankResults(results, traffic.fault)


def _explained(folder: Path, world_size: int, error: Exception) -> ReaderError:
    """The reader's own error if there is one; else what each rank was doing when it stopped."""
    logs = [_log(folder / f"{rank}.log") for rank in range(world_size)]
    waiting = [_pending(log) for log in logs]
    errors = [(rank, entry["error"]) for rank, log in enumerate(logs) for entry in log if "error" in entry]
    mismatch = _mismatch(logs)
    if mismatch:
        return ReaderError(mismatch)
    if DIED in str(error):
        return ReaderError(str(error))
    # A rank that failed while it waited for another is a consequence, not the cause.
    cause = [item for item in errors if waiting[item[0]] is None] or ([] if any(waiting) else errors)
    if cause:
        return ReaderError(f"On rank {cause[0][0]}: {cause[0][1]}")
    lines = ["The ranks wait for one another, or a loop does not end."] if any(waiting) else [str(error)]
    for rank, entry in enumerate(waiting):
        trace = folder / f"{rank}.busy"
        line = traced_line(trace.read_text()) if entry is None and trace.exists() else ""
        lines.append(f"Rank {rank}: {f'busy at {line}' if line else _told(entry)}")
    case = min(sum("case_done" in entry for entry in log) for log in logs)
    return Hang("\n".join(lines), case=case)


def _log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _pending(log: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The call that the rank had not come back from."""
    calls = [entry for entry in log if "error" not in entry]
    return calls[-1] if calls and "op" in calls[-1] and calls[-1]["op"] not in ("isend", "irecv") else None


def _told(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "done, or busy outside torch.distributed"
    peer = f" with rank {entry['peer']}" if entry["peer"] is not None else f" of {entry['bytes']:,} bytes"
    return f"in dist.{entry['op']}{peer}, line {entry['line']}"


def _mismatch(logs: list[list[dict[str, Any]]]) -> str:
    """The first collective in which the ranks do not call the same function with the same size."""
    calls = [
        [
            entry
            for entry in log
            if "op" in entry and entry["peer"] is None and entry["op"] not in ("recv", "irecv")
        ]
        for log in logs
    ]
    for number, entries in enumerate(zip(*calls, strict=False), 1):
        if len({(entry["op"], entry["bytes"]) for entry in entries}) > 1:
            lines = [f"Collective number {number} differs between the ranks:"]
            lines += [f"Rank {rank}: {_told(entry)}" for rank, entry in enumerate(entries)]
            lines.append("Every rank must call the same collectives, with the same sizes, in the same order.")
            return "\n".join(lines)
    return ""
