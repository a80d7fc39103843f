"""Tables as text and as CSV, there and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_tables import schedules

from pdtlib.plan.schedule import (
    Act,
    Costs,
    build,
    from_csv,
    from_text,
    grid,
    picture,
    simulate,
    to_csv,
    to_text,
)


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_text_and_csv_come_back_as_they_were(schedule):
    assert from_text(to_text(schedule)) == schedule
    assert from_csv(to_csv(schedule)) == schedule
    assert from_csv(to_csv(schedule).replace("\n", ",,\r\n")) == schedule  # as a spreadsheet saves it


@given(st.sampled_from(["F", "B", "W", "SF", "RF", "SB", "RB"]), st.integers(0, 10**6), st.integers(0, 1000))
def test_actions_come_back(op, micro_batch, chunk):
    act = Act(op, micro_batch, chunk)
    assert Act.parse(str(act)) == act


def test_the_form_of_an_action():
    assert str(Act("F", 0)) == "F0"
    assert str(Act("W", 12, 1)) == "W12@1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first line: expected a name"),
        ("1f1b stages=1", "first line: expected a name"),
        ("x stages=1 microbatches=1 chunks=1 layouts=loop\nF0 B0", "first line: 'layout' is missing"),
        ("x stages=one microbatches=1 chunks=1 layout=loop\nF0 B0", "first line: .*'one'"),
        ("x stages=1 microbatches=1 chunks=1 layout=ring\nF0 B0", "layout='ring'; valid: loop, vee, two-way"),
        ("x stages=1 microbatches=1 chunks=1 layout=loop\nF0 C0", "stage 0, cell 1: action='C0'"),
        ("x stages=1 microbatches=1 chunks=1 layout=loop\nF0 F-1", "stage 0, cell 1: action='F-1'"),
        ("x stages=2 microbatches=1 chunks=1 layout=loop\nF0 B0", "programs=1: one per stage; valid: 2"),
    ],
)
def test_what_cannot_be_read_is_named(text, words):
    with pytest.raises(ValueError, match=words):
        from_text(text)


def test_a_long_table_is_drawn_around_the_cell():
    schedule = build("1f1b", stages=40, microbatches=100)
    drawn = grid(schedule, mark=(20, 50), around=3).splitlines()
    assert len(drawn) == 7
    assert ">" in drawn[3]
    assert drawn[3].startswith("stage 20  … ")
    assert all(line.endswith("…") for line in drawn)


def test_a_timeline_is_drawn_to_scale():
    timeline = simulate(build("1f1b", stages=2, microbatches=2), Costs(backward_input=2, backward_weight=0))
    assert picture(timeline).splitlines() == [
        "stage 0  F0 F1 .. .. B0 -- .. B1 --",
        "stage 1  .. F0 B0 -- F1 B1 -- .. ..",
    ]
