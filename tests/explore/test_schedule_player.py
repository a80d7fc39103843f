"""Explorer schedule-player: the outline's numbers, edits and what the check says of them, moments."""

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.explore.explorers.schedule_edits import read_edits
from pdtlib.explore.live import Live
from pdtlib.plan.schedule import NAMES

PLAYER = catalog.get("schedule-player")


def view(**state):
    return PLAYER.view_of(state)


def readouts(**state):
    return {readout.name: readout for readout in view(**state).readouts}


@pytest.mark.parametrize(
    ("microbatches", "percent"), [(1, 75.0), (2, 60.0), (4, 42.9), (8, 27.3), (16, 15.8), (32, 8.6)]
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubbles_of_four_stages(schedule, microbatches, percent):
    shown = readouts(schedule=schedule, microbatches=microbatches)["bubble"]
    assert round(100 * shown.value, 1) == percent
    assert shown.text == f"{percent} %"


def test_in_flight_and_interleaving():
    assert readouts()["peak"].note.endswith("4, 3, 2, 1")
    assert readouts(schedule="gpipe")["peak"].note.endswith("8, 8, 8, 8")
    shown = readouts(schedule="interleaved", chunks=2)
    assert (shown["bubble"].text, shown["peak"].value, shown["makespan"].value) == ("15.8 %", 5.5, 28.5)
    assert readouts(schedule="interleaved", chunks=3)["bubble"].text == "11.1 %"


def test_the_articles_order():
    shown = view(schedule="article", microbatches=7, backward=1)
    numbers = {readout.name: readout.value for readout in shown.readouts}
    assert (numbers["makespan"], numbers["bubble"], numbers["peak"]) == (32, 0.5625, 5)
    assert shown.notes[0] == "1F1B takes 20 in the same setting; this takes 60.0 % longer."


def test_layers_of_the_article():
    assert [row[1] for row in view().table.rows] == ["1–12", "13–24", "25–36", "37–48"]
    rows = view(schedule="interleaved").table.rows
    assert [row[1] for row in rows] == ["1–6, 25–30", "7–12, 31–36", "13–18, 37–42", "19–24, 43–48"]
    assert view(schedule="zb-v").table.rows[0][1] == "1–6, 43–48"


def test_a_slower_stage_sets_the_pace_and_messages_cost_time():
    plain = readouts()["makespan"].value
    slow = readouts(uneven="last", slower=1.5)
    assert slow["makespan"].value == 8 * 3 * 1.5 + 3 * 3  # its work, and the others' way there and back
    assert readouts(transfer=0.5)["makespan"].value > plain
    assert slow["bubble"].note == readouts(transfer=0.5)["bubble"].note != readouts()["bubble"].note


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("3.1=F1", "Stage 3, cell 2: F1 has run already, in cell 1"),
        ("0.4<>0", "Stage 0, cell 0: B0 needs F0, which has not run"),
        ("3.0=W0", "Stage 3, cell 0: W0 needs B0, which has not run"),
        ("2.0=F9", "Stage 2, cell 0: F9 isn't this stage's: its chunk 0 takes micro-batches 0 to 7"),
        ("3.1<>2, 0.1<>4", "deadlock: stage 0 waits at B0"),
    ],
)
def test_the_first_offending_cell_is_named_and_framed(edit, words):
    shown = view(edit=edit)
    assert words in shown.summary
    assert [readout.tone for readout in shown.readouts] == ["bad"]
    (frame,) = shown.figure["layout"]["shapes"]
    stage, cell = frame["y0"] + 0.5, frame["x0"]
    assert f"Stage {stage:g}, cell {cell}" in shown.summary
    marked = shown.table.rows[int(stage)][2].split()[cell]
    assert marked.startswith(">")
    assert marked.endswith("<")


def test_a_legal_edit_is_simulated():
    assert readouts(edit="0.3<>4")["makespan"].value == 36  # one forward fewer before the first backward
    assert readouts(edit="0.4<>5")["peak"].value == 5  # one more
    assert readouts(edit="0.4<>5")["legal"].text == "yes, as edited"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("0.4", "no edit"),
        ("0.4=Q1", "Q1"),
        ("0.4<>0.5", "no edit"),
        ("9.0=F0", "no stage 9; stages are 0 to 3"),
        ("0.99=F0", "no cell 99; its cells are 0 to 15"),
        ("0.4<>77", "no cell 77"),
        ("0.1=F1," * 40, "at most"),
    ],
)
def test_what_is_no_edit_is_told_beside_the_control(edit, words):
    with pytest.raises(ControlError, match=words) as caught:
        view(edit=edit)
    assert caught.value.field == "edit"


def test_edits_are_read_with_spaces_and_commas():
    assert read_edits("") == []
    assert [edit[:2] for edit in read_edits(" 0.1 = F2 , 3.0<>2 ,")] == [(0, 1), (3, 0)]


@pytest.mark.parametrize("schedule", NAMES)
def test_moments_run_from_the_first_action_to_the_whole_step(schedule):
    whole = view(schedule=schedule)
    count = whole.limits["step"]
    drawn = [
        sum(len(trace["x"]) for trace in view(schedule=schedule, step=step).figure["data"] if "fill" in trace)
        for step in (1, count // 2, count - 1)
    ]
    assert drawn == sorted(set(drawn))
    assert (
        f"of {readouts(schedule=schedule)['makespan'].value:.4g}:" in view(schedule=schedule, step=1).summary
    )
    assert view(schedule=schedule, step=count - 1).table == whole.table


def test_the_longest_schedule_can_still_be_stepped_through():
    assert 30 < view(schedule="naive", stages=8, microbatches=32).limits["step"] <= 91


def test_an_odd_number_of_stages_is_refused_for_dualpipe():
    with pytest.raises(ControlError, match="3 is odd") as caught:
        view(schedule="dualpipe", stages=3)
    assert caught.value.field == "stages"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v", "gpipe"])
def test_the_job_comes_back_as_the_same_state(schedule):
    state = PLAYER.state({"schedule": schedule, "model": "llama3-8b", "stages": 8, "microbatches": 16})
    job = PLAYER.view_of(state).job
    assert PLAYER.view_of(PLAYER.adopt(job)).job == job
    assert PLAYER.adopt(job) == state
    assert view(schedule="article", model="llama3-8b").job == ""


def test_an_edit_is_typed_in_the_notebook_too():
    widget = Live(PLAYER, PLAYER.state())
    widget.inputs["edit"].value = "3.1=F1"
    assert "F1 has run already" in widget.summary.value
    widget.inputs["edit"].value = "nonsense"
    assert "no edit" in widget.errors["edit"].value
