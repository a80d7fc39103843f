"""Numbers that others have printed: field reports, the papers' tables, the article's own figures."""

import pytest

from pdtlib.plan.schedule import Costs, build, check, lower, simulate, zb_auto
from pdtlib.plan.schedule.zero_bubble_table import PUBLISHED_RATES

UNIT = Costs(forward=1, backward_input=1, backward_weight=0)  # one unit forwards, one back
USUAL = Costs(forward=1, backward_input=2, backward_weight=0)  # a backward takes two forwards' time


@pytest.mark.parametrize(
    ("microbatches", "percent"), [(1, 75.0), (2, 60.0), (4, 42.9), (8, 27.3), (16, 15.8), (32, 8.6)]
)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_four_stages(name, microbatches, percent):
    """GPipe section 2.3: (p-1)/(m+p-1) of the whole time; 1F1B has the same, also below p micro-batches."""
    timeline = simulate(build(name, stages=4, microbatches=microbatches), USUAL)
    assert round(100 * timeline.bubble_fraction, 1) == percent


@pytest.mark.parametrize("costs", [UNIT, USUAL, Costs(forward=3, backward_input=1, backward_weight=7)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_closed_form_holds_for_any_times(name, costs):
    for stages in (1, 2, 3, 5, 8):
        for microbatches in (1, 2, 5, 8, 64):
            timeline = simulate(build(name, stages=stages, microbatches=microbatches), costs)
            expected = (stages - 1) / (microbatches + stages - 1)
            assert timeline.bubble_fraction == pytest.approx(expected, abs=1e-12)
            assert timeline.bubble_rate == pytest.approx(expected, abs=1e-12)


def test_f01_one_f_one_b_has_the_bubble_of_gpipe_and_less_memory():
    gpipe, one = (build(name, stages=8, microbatches=32) for name in ("gpipe", "1f1b"))
    assert simulate(gpipe, UNIT).makespan == simulate(one, UNIT).makespan == 78
    assert simulate(gpipe, USUAL).makespan == simulate(one, USUAL).makespan == 117
    assert simulate(one, UNIT).bubble_fraction == pytest.approx(7 / 39)
    assert simulate(gpipe).peak_in_flight == [32] * 8
    assert simulate(one).peak_in_flight == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("microbatches", "bubble"), [(2, 0.60), (1, 0.75)])
def test_a13_fewer_micro_batches_than_stages(microbatches, bubble):
    for name in ("gpipe", "1f1b"):
        schedule = build(name, stages=4, microbatches=microbatches)
        assert simulate(schedule, USUAL).bubble_fraction == pytest.approx(bubble)
        lower(schedule)


def test_in_flight_of_four_stages():
    assert simulate(build("1f1b", stages=4, microbatches=8)).peak_in_flight == [4, 3, 2, 1]
    assert simulate(build("gpipe", stages=4, microbatches=8)).peak_in_flight == [8, 8, 8, 8]


def test_orders_of_one_f_one_b():
    """C4.3-f: the orders that DeepSpeed's TrainSchedule runs for 7 micro-batches on 4 stages."""
    orders = [" ".join(map(str, program)) for program in build("1f1b", stages=4, microbatches=7).programs]
    assert orders[0] == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 B4 B5 B6"
    assert orders[1] == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 B5 B6"
    assert orders[2].startswith("F0 F1 B0 F2 B1")
    assert orders[3].startswith("F0 B0 F1 B1")


def test_the_articles_order_takes_32_units_where_1f1b_takes_20():
    article = simulate(build("article", stages=4, microbatches=7), UNIT)
    ours = simulate(build("1f1b", stages=4, microbatches=7), UNIT)
    assert (article.makespan, ours.makespan) == (32, 20)
    assert article.bubble_fraction == pytest.approx(0.5625)
    assert ours.bubble_fraction == pytest.approx(0.30)
    assert article.peak_in_flight == [5, 5, 5, 5]


def test_the_articles_picture_takes_five_steps():
    """C4.2: two micro-batches through four stages, forwards only, then with backwards of twice the time."""
    schedule = build("gpipe", stages=4, microbatches=2)
    forwards = simulate(schedule, Costs(backward_input=0, backward_weight=0))
    assert (forwards.makespan, forwards.bubble_fraction) == (5, pytest.approx(0.6))
    whole = simulate(schedule, USUAL)
    assert (whole.makespan, whole.bubble_fraction) == (15, pytest.approx(0.6))


def test_naive_uses_one_stage_at_a_time():
    timeline = simulate(build("naive", stages=4, microbatches=6), USUAL)
    assert timeline.bubble_fraction == pytest.approx(0.75)
    assert timeline.peak_in_flight == [1, 1, 1, 1]


@pytest.mark.parametrize(("chunks", "makespan", "percent"), [(1, 33, 27.3), (2, 28.5, 15.8), (3, 27, 11.1)])
def test_interleaving_divides_the_bubble(chunks, makespan, percent):
    """Narayanan et al. 2021, section 2.2.2: (p-1)/(v m + p - 1) of the whole time."""
    timeline = simulate(build("interleaved", stages=4, microbatches=8, chunks=chunks), USUAL)
    assert timeline.makespan == pytest.approx(makespan)
    assert round(100 * timeline.bubble_fraction, 1) == percent


def test_interleaving_holds_more():
    """Korthikanti et al. 2022, section 4.2.3: x (1 + (p-1)/(p v)) on the first stage: 4 -> 5.5."""
    assert simulate(build("interleaved", stages=4, microbatches=8)).peak_in_flight[0] == 5.5
    for stages, chunks in [(2, 2), (4, 3), (8, 2), (8, 4)]:
        peak = simulate(
            build("interleaved", stages=stages, microbatches=4 * stages, chunks=chunks)
        ).peak_in_flight
        assert peak[0] == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


@pytest.mark.parametrize("row", PUBLISHED_RATES, ids=lambda row: f"{row.model}-m{row.microbatches}")
class TestZeroBubblePaper:
    def rate(self, row, name, **more):
        return simulate(
            build(name, stages=row.stages, microbatches=row.microbatches, **more), row.costs
        ).bubble_rate

    @pytest.mark.parametrize(("printed", "name"), [("1F1B", "1f1b"), ("ZB-H1", "zb-h1"), ("ZB-H2", "zb-h2")])
    def test_hand_made_to_four_digits(self, row, printed, name):
        assert self.rate(row, name) == pytest.approx(row.rates[printed], abs=0.00006)

    def test_interleaved(self, row):
        ours = self.rate(row, "interleaved", chunks=row.interleaved_chunks)
        assert ours == pytest.approx(row.rates["1F1B-I"], abs=0.005)

    def test_made_to_measure(self, row):
        """As good as the paper's own search, ZB-2p, within its memory."""
        cap = 2 * row.stages
        schedule = zb_auto(
            row.stages,
            row.microbatches,
            costs=row.costs,
            memory_cap=cap,
            kept_for_weight=row.kept_for_weight,
        )
        check(schedule, memory_cap=cap, kept_for_weight=row.kept_for_weight)
        assert simulate(schedule, row.costs).bubble_rate <= row.rates["ZB-2p"] + 0.002


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 16])
def test_zero_bubble_formulas(stages):
    """Table 1 of the zero-bubble paper, and no bubble for ZB-V, when T_F = T_B = T_W."""
    microbatches = 4 * stages
    costs = Costs(forward=3, backward_input=3, backward_weight=3)
    for name, bubble in [("zb-h1", 3 * (stages - 1)), ("zb-h2", 0), ("zb-v", 0)]:
        timeline = simulate(build(name, stages=stages, microbatches=microbatches), costs)
        cost = 9 * microbatches / (1 - timeline.bubble_rate)
        assert cost - 9 * microbatches == pytest.approx(bubble, abs=1e-9), name
    # ZB-H1 also when they differ, here T_F > T_B > T_W
    unequal = Costs(forward=4, backward_input=3, backward_weight=2)
    timeline = simulate(build("zb-h1", stages=stages, microbatches=microbatches), unequal)
    assert timeline.makespan - 9 * microbatches == pytest.approx((stages - 1) * (4 + 3 - 2))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 16])
def test_memory_of_the_zero_bubble_schedules(stages):
    peaks = {
        name: simulate(build(name, stages=stages, microbatches=4 * stages)).peak_in_flight
        for name in ("zb-h1", "zb-h2", "zb-v")
    }
    assert peaks["zb-h1"] == [stages] * stages
    assert peaks["zb-h2"] == [2 * stages - 1] * stages
    assert peaks["zb-v"] == [stages] * stages


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_dualpipe_table(stages):
    """DeepSeek-V3, table 2: bubble (PP/2 - 1)(F&B + B - 3W), 2 x parameters, PP + 1 activations."""
    schedule = build("dualpipe", stages=stages, microbatches=2 * stages + 4)
    assert schedule.layout.copies == 2
    assert simulate(schedule).peak_in_flight == [stages + 1] * stages
    backward = 2.0
    for pair in (3.0, 2.5, 2.25):  # F&B: at most a forward and a whole backward
        timeline = simulate(schedule, Costs(pair=pair))
        worst = timeline.makespan - min(timeline.busy)
        assert worst == pytest.approx((stages / 2 - 1) * (pair + backward - 3 * 1.0))


def test_ranks_hold_the_layers_that_the_layouts_say():
    """C4.4-c: 48 layers on 4 stages, two chunks: GPU 0 has layers 1-6 and 25-30."""
    layout = build("interleaved", stages=4, microbatches=8).layout
    first = [[6 * layout.position(rank, chunk) + 1 for chunk in (0, 1)] for rank in range(4)]
    assert first == [[1, 25], [7, 31], [13, 37], [19, 43]]
    vee = build("zb-v", stages=4, microbatches=8).layout
    assert [[vee.position(rank, chunk) for chunk in (0, 1)] for rank in range(4)] == [
        [0, 7],
        [1, 6],
        [2, 5],
        [3, 4],
    ]
