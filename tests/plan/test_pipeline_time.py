"""The pipeline's part of a step: the simulator's time for every schedule, closed forms where known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtlib.plan.job import from_dict
from pdtlib.plan.schedule import FAMILIES, Costs, build, simulate
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.pipeline import SERIAL, pipeline_s
from pdtlib.plan.time.stage import places_work, stages_work
from pdtlib.plan.time.step import bubble_fraction, step_time, step_timeline

NAMES = [name for name in FAMILIES if name != "zb-auto"]  # whose table is made for its costs
CHUNKS = {"interleaved": 3, "zb-v": 2, "dualpipe": 2}
WHOLE = 10**9
# What a smaller pipeline may be wrong by, at MOST_ACTIONS and at a planner's few.
NEAR, ROUGH = 0.035, 0.06
UNEQUAL_CHUNKS = 0.07  # interleaved: one rank that has fewer layers stalls the others in every round


def exactly(name, places, micro_batches, transfer_s):
    """The longest that a rank is occupied, from the simulator's timeline of the whole table."""
    table = build(name, stages=len(places), microbatches=micro_batches, chunks=len(places[0]))
    layout, times = table.layout, {}
    for rank, chunks in enumerate(places):
        times |= {layout.position(rank, chunk): each for chunk, each in enumerate(chunks)}
    forward, backward_input, backward_weight = zip(*(times[at] for at in range(layout.length)), strict=True)
    costs = Costs(
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        transfer=transfer_s,
    )
    timeline = simulate(table, costs)
    return max(ends[-1] - starts[0] for starts, ends in zip(timeline.start, timeline.end, strict=True))


@st.composite
def pipelines(draw, most_stages=8, most_micro_batches=20):
    """A schedule and the uneven times of its chunks: ends that carry more, layers that differ by one."""
    name = draw(st.sampled_from(NAMES))
    stages = draw(st.sampled_from(range(2, most_stages + 1, 2)))
    chunks = CHUNKS.get(name, 1)
    table = build(name, stages=stages, microbatches=2, chunks=chunks)
    size = draw(st.integers(1, 4))
    longer = draw(st.integers(0, table.layout.length - 1))
    first, last = draw(st.floats(0, 0.3)), draw(st.floats(0, 1.5))
    times = []
    for position in range(table.layout.length):
        layers = size + (position < longer)
        extra = (first if position == 0 else 0) + (last if position == table.layout.length - 1 else 0)
        times.append((layers + extra, 1.2 * layers + extra, 0.9 * layers + extra))
    places = [
        [times[table.layout.position(rank, chunk)] for chunk in range(chunks)] for rank in range(stages)
    ]
    micro_batches = draw(st.integers(1, most_micro_batches))
    if name == "dualpipe":
        micro_batches += micro_batches % 2
    return name, places, micro_batches, draw(st.sampled_from([0.0, 0.1]))


@settings(max_examples=80, deadline=None)
@given(pipelines())
def test_every_schedule_takes_what_the_simulator_says(drawn):
    """Uneven stages, fewer micro-batches than stages, transfers: exactly."""
    name, places, micro_batches, transfer_s = drawn
    found = pipeline_s(name, places, micro_batches=micro_batches, transfer_s=transfer_s, most_actions=WHOLE)
    whole = exactly(name, places, micro_batches, transfer_s)
    assert found == pytest.approx(whole)


@settings(max_examples=20, deadline=None)
@given(pipelines(most_stages=20, most_micro_batches=120))
def test_a_smaller_pipeline_stands_for_a_large_one(drawn):
    """Interleaved in whole rounds alone, as Megatron has it: a rest of a few micro-batches is off by more."""
    name, places, micro_batches, transfer_s = drawn
    if name == "interleaved":
        micro_batches = -(-micro_batches // len(places)) * len(places)
    whole = exactly(name, places, micro_batches, transfer_s)
    found = pipeline_s(name, places, micro_batches=micro_batches, transfer_s=transfer_s)
    assert found == pytest.approx(whole, rel=UNEQUAL_CHUNKS if name == "interleaved" else NEAR)


def test_a_period_is_never_less_than_the_busiest_stage_works():
    """A first chunk of half as much more: 6 stages, 90 micro-batches, 3 chunks, of which 18 are simulated."""
    small, large, last = (2.0, 2.4, 1.8), (3.0, 3.6, 2.7), (2.5, 2.9, 2.3)
    places = [[large, small, small], *[[small] * 3] * 4, [small, small, last]]
    found = pipeline_s("interleaved", places, micro_batches=90)
    assert found == pytest.approx(exactly("interleaved", places, 90, 0.0), rel=0.01)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SERIAL])
@pytest.mark.parametrize(("stages", "rounds"), [(8, 1), (16, 1), (16, 3), (32, 8)])
def test_a_very_small_pipeline_stands_for_one_of_equal_stages(name, stages, rounds):
    """As the planner's first look has it."""
    chunks = CHUNKS.get(name, 1)
    places = [[(1.0 / chunks, 1.2 / chunks, 0.9 / chunks)] * chunks] * stages
    whole = exactly(name, places, stages * rounds, 0.0)
    found = pipeline_s(name, places, micro_batches=stages * rounds, most_actions=256)
    assert found == pytest.approx(whole, rel=ROUGH)


@pytest.mark.parametrize("micro_batches", [1, 3, 8, 40])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_closed_forms_of_equal_stages(stages, micro_batches):
    """GPipe and 1F1B: (m + p - 1)(F + B); one at a time: m p (F + B); zero bubble from m >= 2 p on."""
    forward, backward_input, weight = 3.0, 3.5, 2.0
    whole = forward + backward_input + weight
    places = [[(forward, backward_input, weight)]] * stages
    equal = {"gpipe": micro_batches + stages - 1, "1f1b": micro_batches + stages - 1}
    equal["naive"] = micro_batches * stages
    for name, times in equal.items():
        assert pipeline_s(name, places, micro_batches=micro_batches) == pytest.approx(times * whole)
    if micro_batches >= 2 * stages:
        idle = {
            "zb-h1": forward + backward_input - weight,
            "zb-h2": max(0.0, forward + backward_input - 2 * weight),
        }
        for name, each in idle.items():
            expected = micro_batches * whole + (stages - 1) * each
            assert pipeline_s(name, places, micro_batches=micro_batches) == pytest.approx(expected)
    if micro_batches % stages == 0:
        for chunks in (2, 4):
            cut = [[(forward / chunks, backward_input / chunks, weight / chunks)] * chunks] * stages
            expected = micro_batches * whole + (stages - 1) * whole / chunks
            found = pipeline_s("interleaved", cut, micro_batches=micro_batches)
            assert found == pytest.approx(expected, rel=1e-9 if micro_batches > stages else 0.1)


def test_closed_forms_of_unequal_stages():
    """GPipe: two flow shops, each with its own slowest stage."""
    places = [[(1.0, 2.0, 0.5)], [(2.0, 1.0, 0.5)], [(1.5, 3.0, 0.5)]]
    forwards, backwards = (1.0, 2.0, 1.5), (2.5, 1.5, 3.5)
    for micro_batches in (1, 2, 9):
        expected = sum(forwards) + sum(backwards) + (micro_batches - 1) * (max(forwards) + max(backwards))
        assert pipeline_s("gpipe", places, micro_batches=micro_batches) == pytest.approx(expected)


def test_latency_slows_1f1b_and_not_zb_h2():
    """1F1B sends a micro-batch down and its gradient up within a round, with nothing else to do meanwhile."""
    places = [[(1.0, 1.0, 1.0)]] * 8
    for name, slower in (("1f1b", True), ("zb-h2", False)):
        runs = [
            pipeline_s(name, places, micro_batches=m, transfer_s=transfer)
            for transfer in (0.0, 0.2)
            for m in (100, 200)
        ]
        periods = [(runs[1] - runs[0]) / 100, (runs[3] - runs[2]) / 100]
        assert periods[0] == pytest.approx(3.0)
        assert (periods[1] > 3.05) == slower


TABLES = {
    "model": {"preset": "llama3-8b"},
    "train": {"global_batch": 24, "zero_stage": 1},
    "hardware": {"cluster": "dgx-h100"},
}


@pytest.mark.parametrize(
    "parallel",
    [
        {"schedule": "gpipe"},
        {"schedule": "1f1b"},
        {"schedule": "interleaved", "vpp": 2},
        {"schedule": "zb-h1"},
        {"schedule": "zb-h2"},
        {"schedule": "zb-v", "vpp": 2},
        {"schedule": "dualpipe"},
    ],
)
@pytest.mark.parametrize("batch", [4, 24])
def test_a_job_takes_what_its_table_takes(parallel, batch):
    """Every schedule that a job may name; the head on one stage; more and fewer micro-batches than stages."""
    job = from_dict(
        {**TABLES, "train": {**TABLES["train"], "global_batch": batch}, "parallel": {"pp": 8, **parallel}}
    )
    system = system_of(job, overlap_pp=1.0, step_s=0.0)
    time = step_time(job, system=system)
    places = [[chunk.times() for chunk in chunks] for chunks in places_work(job, system=system)]
    assert len({chunk for chunks in places for chunk in chunks}) > 1
    table = exactly(parallel["schedule"], places, batch, 0.0)
    latency = exactly(parallel["schedule"], places, batch, 1e-3) - table
    assert table <= time.step_s - time.optimizer_s <= table + latency
    slowest = max(stage.total for stage in stages_work(job, system=system))
    assert time.bubble_s == pytest.approx(time.step_s - time.optimizer_s - batch * slowest)


def test_zb_vs_first_stage_has_both_ends():
    """The vee's first rank holds the embedding and the head: it is the slowest."""
    job = from_dict({**TABLES, "parallel": {"pp": 4, "schedule": "zb-v"}})
    totals = [stage.total for stage in stages_work(job, system=system_of(job))]
    assert max(totals) == totals[0]
    loop = from_dict({**TABLES, "parallel": {"pp": 4}})
    assert max(stages_work(loop, system=system_of(loop)), key=lambda stage: stage.total).total > totals[1]


def test_recomputing_fewer_layers_is_faster():
    def seconds(**train):
        job = from_dict({**TABLES, "train": {**TABLES["train"], **train}, "parallel": {"pp": 4}})
        return step_time(job, system=system_of(job)).step_s

    none, some, every = (
        seconds(),
        seconds(recompute="full", recompute_layers=3),
        seconds(recompute="full"),
    )
    assert none < some < every


@pytest.mark.parametrize(("schedule", "share"), [("gpipe", 3 / 9), ("1f1b", 3 / 9), ("zb-h2", 0.0)])
def test_bubble_of_equal_stages(schedule, share):
    parallel = {"pp": 4, "schedule": schedule}
    job = from_dict({"model": {"preset": "gpt2"}, "train": {"global_batch": 6}, "parallel": parallel})
    if schedule == "zb-h2":
        job = from_dict({"model": {"preset": "gpt2"}, "train": {"global_batch": 16}, "parallel": parallel})
    assert bubble_fraction(job) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "dualpipe"])
def test_the_timeline_drawn_is_the_one_that_is_timed(name):
    job = from_dict(
        {
            "model": {"preset": "llama2-13b"},
            "train": {"global_batch": 8},
            "parallel": {"pp": 4, "schedule": name, **({"vpp": 2} if name == "interleaved" else {})},
            "hardware": {"cluster": "dgx-a100"},
        }
    )
    system = system_of(job)
    drawn, timed = step_timeline(job, system=system, micro_batches=8), step_time(job, system=system)
    rest = timed.optimizer_s + system.software.step_s  # what a step does besides its pipeline
    assert drawn.makespan == pytest.approx(timed.step_s - rest)
