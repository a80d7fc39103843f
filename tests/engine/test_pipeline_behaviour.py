"""What a pipeline holds, sends and says: activations and messages as its table has them, clear errors."""

import time
import weakref
from collections import Counter
from typing import Any
from unittest import mock

import pipeline_zoo
import pytest
import torch
from pipeline_zoo import LENGTH, ROWS, WIDTH, Case, Run, build_parts, own_layers
from torch import nn

from pdtlib.engine.dist import RankError, spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.pipeline import Pipeline, cut_layers, links
from pdtlib.engine.pipeline.links import Sender
from pdtlib.observe.memory import ActivationMeter
from pdtlib.observe.trace import Timeline
from pdtlib.plan.schedule import NAMES, Layout, build, peak_in_flight

HIDDEN_BYTES = ROWS * LENGTH * WIDTH * 8


class Layer(nn.Module):
    """Keeps its input and nothing else, so that what is kept tells how many micro-batches are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def kept_at_most(cases: list[tuple[str, int]]) -> list[tuple[float, float]]:
    """(most passes alive, most bytes kept by autograd), both in micro-batches of a whole stage."""
    group = build_mesh({"pp": 2}).group("pp")
    found = []
    for name, micro_batches in cases:
        table = build(name, stages=2, microbatches=micro_batches)
        torch.manual_seed(0)
        layers = [Layer().double() for _ in range(table.layout.length)]
        pipe = Pipeline(cut_layers(layers, table.layout, group.rank), group, schedule=name)
        inputs = [torch.ones(ROWS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(micro_batches)]
        with ActivationMeter(excluded=pipe.module.parameters()) as meter:
            pipe.step(inputs, loss=lambda output, index: output.sum())
        pieces = table.layout.length / 2
        found.append((pipe.executor.most_alive / pieces, meter.peak_bytes / HIDDEN_BYTES / pieces))
    return found


def test_micro_batches_in_flight_are_the_tables() -> None:
    cases = [(name, count) for name in NAMES for count in (1, 6)]
    ranks = spawn(kept_at_most, 2, cases, timeout_s=200)
    for index, (name, count) in enumerate(cases):
        table = build(name, stages=2, microbatches=count)
        for rank, planned in enumerate(peak_in_flight(table)):
            alive, kept = ranks[rank][index]
            assert alive == planned, (name, count)
            # Between the halves a work keeps the gradient of the layer's output beside its input.
            most = 2 * planned if table.splits_backward else planned
            assert planned <= kept <= most, (name, count)


def outputs_alive() -> list[int]:
    """How many outputs of the last position exist whenever another one is made."""
    pipe = Pipeline(own_parts(), build_mesh({"pp": 2}).group("pp"))
    made: list[weakref.ref[torch.Tensor]] = []
    found = []

    def loss(output: torch.Tensor, index: int) -> torch.Tensor:
        found.append(sum(each() is not None for each in made))
        made.append(weakref.ref(output))
        return output.square().sum()

    pipe.step([pipeline_zoo.data(0, number)[0] for number in range(4)], loss=loss)
    found.append(sum(each() is not None for each in made))
    return found


def test_logits_do_not_outlive_their_backward_pass() -> None:
    assert spawn(outputs_alive, 2)[1] == [0, 0, 0, 0, 0]


def one_step_of_each(names: list[str]) -> list[float]:
    """Losses of a step whose sends wait for their receives, none of which is posted ahead."""
    real = Sender.send

    def send_and_wait(self: Sender, x: torch.Tensor) -> None:
        real(self, x)
        self.finish()

    with mock.patch.object(Sender, "send", send_and_wait), mock.patch.object(links, "AHEAD", 0):
        return [Run(Case(name, "list", 5, 4)).step(0)[1] for name in names]


def test_no_schedule_needs_buffers() -> None:
    norms = spawn(one_step_of_each, 4, [*NAMES])
    expected = pipeline_zoo.one_process("list", 5)["norms"][0]
    assert norms == [[pytest.approx(expected, rel=1e-9)] * len(NAMES)] * 4


def rows_of(cases: list[Case]) -> list[list[dict[str, Any]]]:
    found = []
    for case in cases:
        run = Run(case)
        first = run.pp.ledger.rows()
        for step in range(2):
            run.step(step)
        found.append([row for row in run.pp.ledger.rows() if row["axis"] == "pp"])
        assert not [row for row in first if row["phase"] in ("forward", "backward")]
    return found


def test_messages_are_the_tables() -> None:
    """Of the second step: raw tensors, as many as the table has, and the copies' gradients."""
    cases = [Case("1f1b", "gpt", 5, 2), Case("interleaved", "llama", 3, 2), Case("zb-v", "gpt", 4, 2)]
    sent = [{0: (5, 0), 1: (0, 5)}, {0: (6, 3), 1: (3, 6)}, {0: (4, 4), 1: (4, 4)}]
    for rank, found in enumerate(spawn(rows_of, 2, cases)):
        for case, counts, rows in zip(cases, sent, found, strict=True):
            by_phase = Counter({row["phase"]: row["count"] for row in rows})
            assert (by_phase["forward"], by_phase["backward"]) == counts[rank], case
            sizes = {row["message_bytes"] for row in rows if row["collective"] == "send"}
            assert sizes == {HIDDEN_BYTES}
            tied = [row["message_bytes"] for row in rows if row["phase"] == "embedding"]
            both_ends = case.schedule == "zb-v"
            has_copies = case.model == "gpt" and not both_ends
            assert tied == ([pipeline_zoo.VOCAB * WIDTH * 8] if has_copies else [])
            assert by_phase["init"] == 0


def spans() -> list[str]:
    run = Run(Case("zb-h1", "llama", 2, 2))
    run.step(0)
    run.pp.timeline = timeline = Timeline()
    run.step(1)
    return [span.name for span in timeline.finish_step() if span.lane == "compute"]


def test_actions_are_spans() -> None:
    table = build("zb-h1", stages=2, microbatches=2)
    for rank, names in enumerate(spawn(spans, 2)):
        assert names == [str(act) for act in table.programs[rank]]


def fails_in_the_middle() -> None:
    run = Run(Case("1f1b", "list", 4, 4))

    def loss(output: torch.Tensor, index: int) -> torch.Tensor:
        if index == 2:
            raise ArithmeticError("no loss today")
        return output.sum()

    run.pipeline.step([pipeline_zoo.data(0, number)[0] for number in range(4)], loss=loss)


def test_a_failing_rank_ends_all() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"no loss today[\s\S]*in action F2 of pipeline rank 3") as error:
        spawn(fails_in_the_middle, 4, group_timeout_s=60)
    assert error.value.rank == 3
    assert time.monotonic() - start < 50, "the others did not wait for their timeout"


def uneven_micro_batches() -> str:
    pipe = Pipeline(own_parts(), build_mesh({"pp": 2}).group("pp"))
    inputs = [torch.zeros(ROWS, LENGTH - index, dtype=torch.int64) for index in range(2)]
    try:
        pipe.step(inputs, loss=lambda output, index: output.sum())
    except ValueError as error:
        return str(error)
    except RuntimeError:
        return "the other rank is gone"
    return "nothing"


def own_parts() -> list[nn.Module]:
    return build_parts(Case("1f1b", "list", 2, 2), int(torch.distributed.get_rank()))


def test_micro_batches_must_be_alike() -> None:
    said = spawn(uneven_micro_batches, 2, group_timeout_s=5)[0]
    assert "the output before position 1 is (2, 5, 8) torch.float64" in said
    assert "in the first micro-batch it was (2, 6, 8)" in said


def tied_from_other_seeds() -> torch.Tensor:
    group = build_mesh({"pp": 2}).group("pp")
    layers = own_layers(seed=group.rank)
    pipe = Pipeline(cut_layers(layers, Layout(stages=2), group.rank), group)
    assert pipe.tied is not None
    assert (pipe.tied_copy is None) == (group.rank == 0)
    return pipe.tied.detach()


def test_tied_copies_start_equal() -> None:
    first, last = spawn(tied_from_other_seeds, 2)
    assert torch.equal(first, last)


def test_refusals() -> None:
    alone = Group.alone("pp")
    with pytest.raises(ValueError, match="schedule='2f2b'; valid: naive, gpipe"):
        Pipeline([nn.Linear(2, 2)], alone, schedule="2f2b")
    with pytest.raises(ValueError, match="zb-v has 2 chunks a rank, not 1"):
        Pipeline([nn.Linear(2, 2)], alone, schedule="zb-v")
    layers = [nn.Linear(2, 2) for _ in range(4)]
    with pytest.raises(ValueError, match="need 2 sizes from 1 that sum to 4"):
        cut_layers(layers, Layout(stages=2), 0, sizes=[4, 0])
    layers[2].weight = layers[0].weight
    with pytest.raises(ValueError, match="only the first and the last position may share one"):
        cut_layers(layers, Layout(stages=4), 0)
    assert [name for name, _ in cut_layers(layers[:2], Layout(stages=2), 1)[0].named_parameters()] == [
        "1.weight",
        "1.bias",
    ]
