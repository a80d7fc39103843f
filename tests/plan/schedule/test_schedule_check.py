"""``check`` finds what is wrong, says where, and agrees with an independent judge on random tables."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_oracle import independently_legal
from schedule_tables import schedules

from pdtlib.plan.schedule import (
    Act,
    Layout,
    Schedule,
    ScheduleError,
    build,
    check,
    check_messages,
    first_fault,
    from_text,
    lower,
    simulate,
)
from pdtlib.plan.schedule.lower import Lowered


def table(*lines, layout="loop", microbatches=2, chunks=1):
    head = f"mine stages={len(lines)} microbatches={microbatches} chunks={chunks} layout={layout}"
    return from_text("\n".join([head, *lines]))


@pytest.mark.parametrize(
    ("lines", "rule", "cell", "words"),
    [
        (("F0 F1 B0 B1", "F0 B0 F1 F1"), "once", (1, 3), "F1 has run already, in cell 2"),
        (("F0 F1 B0 B1", "F0 B0 F1"), "once", (1, 3), "B1 is missing"),
        (("F0 F1 B0 B1", "F0 B0 B1 F1"), "order", (1, 2), "B1 needs F1"),
        (("F0 W0 F1 B0 B1", "F0 B0 F1 B1"), "order", (0, 1), "W0 needs B0"),
        (("F0 F2 B0 B1", "F0 B0 F1 B1"), "action", (0, 1), "micro-batches 0 to 1"),
        (("F0@1 F1 B0 B1", "F0 B0 F1 B1"), "action", (0, 0), "it has chunk 0"),
        (("F0 F1 B0 B1", "F0 SF0 B0 F1 B1"), "action", (1, 1), "no computation"),
        (("F0 B0&F1 B1", "F0 B0 F1 B1"), "overlap", (0, 1), "only a forward"),
        (("F0 B0 F1 B1", "F0 F1 B0 B1"), "deadlock", (0, 1), "stage 0 waits at B0 for stage 1's B0"),
        (("F0 F1 B1 B0", "F0 B0 F1 B1"), None, None, None),
        (("F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1"), None, None, None),
    ],
)
def test_each_rule(lines, rule, cell, words):
    fault = first_fault(table(*lines))
    if rule is None:
        assert fault is None
        return
    assert (fault.rule, (fault.rank, fault.index)) == (rule, cell)
    assert words in fault.message
    with pytest.raises(ScheduleError) as error:
        simulate(table(*lines))
    assert error.value.fault == fault


def test_the_first_faulty_cell_is_named_and_drawn():
    bad = table("F0 F1 B0 B1", "F0 B1 F1 B0", "F0 B0 F1 B1")
    with pytest.raises(ScheduleError) as error:
        check(bad)
    assert str(error.value).splitlines() == [
        "stage 1, cell 1: B1 needs F1, which has not run",
        "stage 0   F0   F1   B0   B1",
        "stage 1   F0  >B1<  F1   B0",
        "stage 2   F0   B0   F1   B1",
    ]


def test_a_missing_action_is_marked_behind_the_end():
    with pytest.raises(ScheduleError, match=r"stage 1  F0 B0 F1 ><"):
        check(table("F0 F1 B0 B1", "F0 B0 F1"))


def test_a_circle_of_three_names_all_its_links():
    # Stage 0 holds back F1 until B0 is over, stage 1 wants F1 before B0, stage 2 would do either.
    fault = first_fault(table("F0 B0 F1 B1", "F0 F1 B0 B1", "F0 F1 B0 B1"))
    assert fault.message == (
        "deadlock: stage 0 waits at B0 for stage 1's B0, stage 1 waits at F1 for stage 0's F1"
    )


def test_memory_cap():
    schedule = build("1f1b", stages=4, microbatches=8)
    check(schedule, memory_cap=4)
    fault = first_fault(schedule, memory_cap=3)
    assert (fault.rule, fault.rank, fault.index) == ("memory", 0, 3)
    assert "F3 makes this stage hold 4 activations; the cap is 3" in fault.message
    split = build("zb-h1", stages=4, microbatches=8)
    assert first_fault(split, memory_cap=3.9) is not None
    assert first_fault(split, memory_cap=4) is None


def test_two_way_micro_batches_stay_in_their_direction():
    schedule = build("dualpipe", stages=2, microbatches=4)
    wrong = [tuple(Act(a.op, a.micro_batch, 1 - a.chunk) for a in program) for program in schedule.programs]
    assert first_fault(replace(schedule, programs=tuple(wrong), overlapped=frozenset())).rule == "action"


@settings(max_examples=300, deadline=None)
@given(data=st.data(), schedule=schedules(most_stages=4, most_microbatches=5))
def test_random_edits_are_judged_as_by_an_independent_judge(data, schedule):
    programs = [list(program) for program in schedule.programs]
    for _ in range(data.draw(st.integers(1, 3))):
        program = programs[data.draw(st.integers(0, schedule.stages - 1))]
        i, j = (data.draw(st.integers(0, len(program) - 1)) for _ in range(2))
        edit = data.draw(st.sampled_from(["swap", "move", "copy", "drop"]))
        if edit == "swap":
            program[i], program[j] = program[j], program[i]
        elif edit == "move":
            program.insert(j, program.pop(i))
        elif edit == "copy":
            program[i] = program[j]
        elif len(program) > 1:
            program.pop(i)
    edited = replace(schedule, programs=tuple(map(tuple, programs)), overlapped=frozenset())
    legal = first_fault(edited) is None
    assert legal == independently_legal(edited)
    if legal:
        check_messages(lower(edited))
    else:
        with pytest.raises(ScheduleError):
            lower(edited)


def test_messages_placed_by_each_rank_for_itself_deadlock():
    """Receive just before, send just behind each computation: two neighbours send at the same time."""
    schedule = build("1f1b", stages=2, microbatches=3)
    naive = table(
        "F0 SF0 F1 SF1 RB0 B0 F2 SF2 RB1 B1 RB2 B2",
        "RF0 F0 B0 SB0 RF1 F1 B1 SB1 RF2 F2 B2 SB2",
        microbatches=3,
    )
    with pytest.raises(ValueError, match=r"stage 0, cell 3: deadlock, .*SF1.*SB0"):
        check_messages(Lowered(schedule=schedule, programs=naive.programs))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("SF0 F0 RB0 B0", "RF0 F0 B0 SB0", "stage 0, cell 0: SF0 is sent before it is computed"),
        ("F0 SF0 RB0 B0", "F0 RF0 B0 SB0", "stage 1, cell 0: F0 runs before RF0 came"),
        ("F0 SF0 B0 RB0", "RF0 F0 B0 SB0", "stage 0, cell 2: B0 runs before RB0 came"),
        ("F0 SF0 RB0 B0", "RF0 F0 B0", "stage 0, cell 2: deadlock"),
        ("F0 RB0 B0", "RF0 F0 B0 SB0", "stage 1, cell 0: deadlock"),
        ("F0 SF0 SF0 RB0 B0", "RF0 RF0 F0 B0 SB0", "stage 0, cell 2: SF0 has run already"),
        ("F0 SF0 RB0", "RF0 F0 B0 SB0", "stage 0, cell 3: the table has B0 here, not nothing"),
        ("F0 SF0 RB0 B0 W0", "RF0 F0 B0 SB0", "stage 0, cell 4: the table has nothing here, not W0"),
        ("F0 SF0 RB0 B0", "RF0 F0 B0 SB0 SF0", "stage 1, cell 4: SF0 is sent to nobody"),
    ],
)
def test_bad_messages_are_named(first, second, words):
    schedule = build("1f1b", stages=2, microbatches=1)
    lowered = Lowered(schedule=schedule, programs=table(first, second, microbatches=1).programs)
    with pytest.raises(ValueError, match=words):
        check_messages(lowered)


def messages(lowered, rank, other):
    """(activation or gradient, micro-batch) of what ``rank`` exchanges with ``other``, in its order."""
    return [
        (act.op[1], act.micro_batch)
        for act in lowered.programs[rank]
        if act.op[0] in "SR" and lowered.peer(rank, act) == other
    ]


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v", "dualpipe"])
def test_both_ends_list_their_messages_in_one_order(name):
    lowered = lower(build(name, stages=4, microbatches=9))
    for a, b in combinations(range(4), 2):
        assert messages(lowered, a, b) == messages(lowered, b, a)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "1f2b"}, "schedule='1f2b'; valid: naive, gpipe"),
        ({"name": "1f1b", "chunks": 2}, "chunks=2: 1f1b has 1 a stage; valid: 1"),
        ({"name": "zb-v", "chunks": 3}, "chunks=3: zb-v has 2 a stage"),
        ({"name": "dualpipe", "stages": 3}, "stages=3: dualpipe pairs its ranks"),
        ({"name": "1f1b", "stages": 0}, "stages=0; valid: 1 or more"),
        ({"name": "1f1b", "microbatches": 0}, "microbatches=0; valid: 1 or more"),
        ({"name": "interleaved", "chunks": 0}, "chunks=0; valid: 1 or more"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        build(**{"stages": 4, "microbatches": 8, **arguments})


def test_a_table_needs_a_program_per_stage():
    with pytest.raises(ValueError, match="programs=1: one per stage; valid: 2"):
        Schedule(name="x", layout=Layout(stages=2), microbatches=1, programs=((Act("F", 0), Act("B", 0)),))
