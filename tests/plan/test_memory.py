"""The memory model: what schedules keep in flight, and memory over a step."""

import pytest

from pdtlib.plan.flats import held_bytes
from pdtlib.plan.job import from_dict, replace
from pdtlib.plan.memory import chunks_in_flight, one_layer_bytes, setting_of, stage_memory
from pdtlib.plan.memory_timeline import memory_timeline
from pdtlib.plan.schedule import build, peak_in_flight


def job_with(pp, micro_batches, schedule="1f1b", vpp=1, **train):
    return from_dict(
        {
            "model": {"layers": 48, "hidden": 64, "heads": 2, "vocab": 64, "seq": 8, "dropout": 0.1},
            "train": {"global_batch": micro_batches, **train},
            "parallel": {"pp": pp, "schedule": schedule, "vpp": vpp},
        }
    )


@pytest.mark.parametrize(("pp", "micro_batches"), [(4, 8), (4, 16), (8, 32), (4, 4)])
@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("interleaved", 3),
        ("zb-h1", 1),
        ("zb-h2", 1),
        ("zb-v", 2),
        ("dualpipe", 1),
    ],
)
def test_closed_forms_equal_the_tables(schedule, vpp, pp, micro_batches):
    """What memory charges is what the schedule's own table keeps in flight at most, stage by stage."""
    job = job_with(pp, micro_batches, schedule, vpp)
    chunks = {"chunks": vpp} if schedule == "interleaved" else {}
    table = build(schedule, stages=pp, microbatches=micro_batches, **chunks)
    charged = [chunks_in_flight(job, stage) / vpp for stage in range(pp)]
    kept = list(peak_in_flight(table))
    if micro_batches >= 2 * pp:
        assert charged == kept
    else:  # too few to fill every schedule
        assert all(a >= b for a, b in zip(charged, kept, strict=True))


@pytest.mark.parametrize(("micro_batches", "kept"), [(1, [1, 1, 1, 1]), (2, [2, 2, 2, 1])])
def test_fewer_micro_batches_than_stages(micro_batches, kept):
    """Field report: 1F1B's warm-up is capped by the micro-batches."""
    job = job_with(4, micro_batches)
    assert [chunks_in_flight(job, stage) for stage in range(4)] == kept


def test_1f1b_keeps_less_than_gpipe_on_every_stage_but_no_shorter_bubble():
    """Field report: 8 stages, 32 micro-batches: 32 in flight against 8, 7, ..., 1."""
    assert [chunks_in_flight(job_with(8, 32, "gpipe"), stage) for stage in range(8)] == [32] * 8
    assert [chunks_in_flight(job_with(8, 32), stage) for stage in range(8)] == list(range(8, 0, -1))


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_a_pipeline_divides_states_but_not_what_its_first_stage_keeps(pp):
    """Chapter 4: p micro-batches of L/p layers are L layers, whatever p is."""
    alone, first = (stage_memory(job_with(p, 16), 0) for p in (1, pp))
    assert first.activations == pytest.approx(alone.activations, rel=0.01)
    assert first.params < 1.02 * alone.params / pp


def test_interleaving_keeps_more():
    """4 stages, 8 micro-batches, 2 chunks: 5.5 whole stages' worth where 1F1B keeps 4 (x 1.375)."""
    assert chunks_in_flight(job_with(4, 8, "interleaved", 2), 0) / 2 == 5.5


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1)]
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_timelines_peak_is_what_memory_charges(schedule, vpp, recompute):
    job = job_with(4, 8, schedule, vpp, recompute=recompute)
    for stage in range(4):
        found, charged = memory_timeline(job, stage), stage_memory(job, stage)
        states = charged.params + charged.grads + charged.optimizer
        assert found.states == states == held_bytes(job, stage).total
        assert found.peak == pytest.approx(states + charged.activations + charged.logits)
        assert found.steps[0] == (0.0, states)
        assert found.steps[-1][1] == pytest.approx(states)  # all is freed at the end
        times = [time for time, _ in found.steps]
        assert times[0] <= min(times)


def test_one_stage_holds_one_micro_batch_at_a_time():
    job = job_with(1, 3)
    found = memory_timeline(job, 0)
    tops = [held for _, held in found.steps if held > found.states]
    assert len(tops) == 3
    assert len(set(tops)) == 1


def test_a_recomputed_layer_comes_back_while_it_is_needed():
    job = job_with(1, 2, recompute="full")
    whole = one_layer_bytes(job, setting_of(replace(job, {"train.recompute": "none"})))
    inputs = one_layer_bytes(job, setting_of(job))
    assert stage_memory(job, 0).activations >= 48 * inputs + whole


def test_dualpipe_holds_two_copies_of_the_states():
    once, twice = (stage_memory(job_with(4, 8, name), 1) for name in ("zb-h1", "dualpipe"))
    assert twice.params == 2 * once.params
    assert twice.optimizer == 2 * once.optimizer
