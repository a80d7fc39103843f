"""Our schedule tables, and our rules for torch, beside torch.distributed.pipelining itself."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import schedules as torch_schedules

from pdtlib.plan.schedule import build, schedule_problems, to_torch_csv
from pdtlib.plan.schedule.rules import TORCH


def torch_table(name, stages, microbatches, chunks):
    """torch's own order, a row of computations per rank. It asks stages only for counts and places."""
    kind = torch_schedules.get_schedule_class(TORCH[name])
    pieces = [
        SimpleNamespace(
            group_size=stages,
            group_rank=0,
            num_stages=stages * chunks,
            stage_index=chunk * stages,
            stage_index_to_group_rank={i: i % stages for i in range(stages * chunks)},
            has_backward=True,
            submod=torch.nn.Identity(),
            is_first=chunk == 0,
            is_last=chunk == chunks - 1 and stages == 1,
        )
        for chunk in range(chunks)
    ]
    single = issubclass(kind, torch_schedules.PipelineScheduleSingle)
    schedule = kind(pieces[0] if single else pieces, microbatches)
    table = schedule._get_pipeline_order() if single else schedule.pipeline_order
    rows = [[str(act) for act in table[rank] if act is not None] for rank in range(stages)]
    return [[cell for cell in row if not cell.endswith("REDUCE_GRAD")] for row in rows]


def cases(name):
    for stages in (2, 3, 4, 6):
        for microbatches in range(1, 14):
            yield stages, microbatches, {"interleaved": 3, "zb-v": 2}.get(name, 1)


@pytest.mark.parametrize("name", sorted(TORCH))
def test_orders_are_torchs(name):
    """Interleaved for whole rounds; with others, torch makes its rounds longer and we leave some out."""
    compared = 0
    for stages, microbatches, chunks in cases(name):
        if name == "interleaved" and microbatches % stages:
            continue
        if schedule_problems(name, stages=stages, microbatches=microbatches, chunks=chunks, target="torch"):
            continue
        ours = build(name, stages=stages, microbatches=microbatches, chunks=chunks)
        rows = [line.split(",") for line in to_torch_csv(ours).splitlines()]
        theirs = torch_table(name, stages, microbatches, chunks)
        if name == "1f1b":  # torch prints the last rank's forwards from 1, but runs them from 0
            assert theirs[-1][0] == f"{stages - 1}F1"
            rows, theirs = rows[:-1], theirs[:-1]
        assert rows == theirs
        compared += 1
    assert compared > 8


@pytest.mark.parametrize("name", sorted(TORCH))
def test_what_torch_refuses(name):
    for stages, microbatches, chunks in cases(name):
        problems = schedule_problems(
            name, stages=stages, microbatches=microbatches, chunks=chunks, target="torch"
        )
        try:
            torch_table(name, stages, microbatches, chunks)
            refused = False
        except ValueError:
            refused = True
        assert bool(problems) == refused, (stages, microbatches)
        for number in problems[0].valid if problems else ():
            torch_table(name, stages, number, chunks)


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "interleaved"])
def test_torch_reads_our_csv(name, tmp_path):
    schedule = build(name, stages=4, microbatches=8)
    path = tmp_path / "schedule.csv"
    path.write_text(to_torch_csv(schedule), encoding="utf-8")
    for line in path.read_text(encoding="utf-8").splitlines():
        for cell in line.split(","):
            act = torch_schedules._Action.from_str(cell)
            assert act is not None
            assert str(act) == cell
