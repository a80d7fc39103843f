"""Explorers' definitions: every state has a view or a message, and known numbers come out."""

import json
import random

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError, Number, Toggle

EXPLORERS = [catalog.get(id) for id in catalog.IDS]
GIB = 2**30


def readouts(id, **state):
    return {readout.name: readout for readout in catalog.get(id).view_of(state).readouts}


@pytest.mark.parametrize("explorer", EXPLORERS, ids=catalog.IDS)
def test_state_is_stable_under_its_own_keys(explorer):
    state = explorer.state()
    assert explorer.state(state) == state
    for control in explorer.controls:
        for key in control.moves():
            moved = explorer.state({control.name: key})
            assert moved[control.name] == key
            assert explorer.state(moved) == moved


@pytest.mark.parametrize("explorer", EXPLORERS, ids=catalog.IDS)
def test_a_key_and_its_value_give_the_same_view(explorer):
    for control in explorer.controls:
        for key in control.moves()[:3]:
            by_key = view_or_error(explorer, {control.name: key})
            by_value = view_or_error(explorer, {control.name: control.parse(key)})
            assert by_key == by_value


@pytest.mark.parametrize("explorer", EXPLORERS, ids=catalog.IDS)
def test_every_single_move_has_a_view_or_a_message_beside_a_control(explorer):
    names = {control.name for control in explorer.controls}
    for control in explorer.controls:
        for key in control.moves():
            answer = view_or_error(explorer, {control.name: key})
            if isinstance(answer, str):
                assert answer in names, f"{control.name}={key} is refused without naming a control"


@pytest.mark.parametrize("explorer", EXPLORERS, ids=catalog.IDS)
def test_random_states_never_fail_otherwise(explorer):
    draw = random.Random(7)
    shown = 0
    for _ in range(60):
        state = {
            control.name: draw.choice(control.moves()) for control in explorer.controls if control.moves()
        }
        shown += isinstance(view_or_error(explorer, state), dict)
    assert shown > 20


@pytest.mark.parametrize("explorer", EXPLORERS, ids=catalog.IDS)
def test_views_say_in_words_and_tables_what_they_draw(explorer):
    view = explorer.view_of()
    assert view.summary.endswith(".")
    assert view.figure["layout"]["height"] > 0
    assert all(len(row) == len(view.table.columns) for row in view.table.rows)
    assert len({readout.name for readout in view.readouts}) == len(view.readouts)


@pytest.mark.parametrize(
    "id", ["memory-stack", "training-time", "zero", "overlap", "tensor-split", "sequence-regions"]
)
def test_a_job_carried_to_an_explorer_and_back_is_the_same_state(id):
    explorer = catalog.get(id)
    state = explorer.state({"model": "llama3-8b"})
    job = explorer.view_of(state).job
    adopted = explorer.adopt(job)
    assert explorer.view_of(adopted).job == job


def test_every_explorer_with_jobs_adopts_the_job_of_every_other():
    with_jobs = [explorer for explorer in EXPLORERS if explorer.adopt_job]
    assert len(with_jobs) >= 4
    for giver in with_jobs:
        job = giver.view_of({"model": "llama3-8b"}).job
        for taker in with_jobs:
            taker.view_of(taker.adopt(job))


def view_or_error(explorer, state):
    try:
        return json.loads(json.dumps(explorer.view_of(state).to_dict(), allow_nan=False))
    except ControlError as error:
        return error.field


def test_wrong_values_are_refused_with_the_control_and_the_valid_values():
    zero = catalog.get("zero")
    with pytest.raises(ControlError, match="7 is not one of 1, 2, 3, 4") as caught:
        zero.view_of({"ranks": 7})
    assert caught.value.field == "ranks"
    with pytest.raises(ValueError, match="no control 'n'"):
        zero.view_of({"n": 1})
    with pytest.raises(ValueError, match="there are memory-stack"):
        catalog.get("nothing")


@pytest.mark.parametrize("text", ["many", "", "-1", "1e99", "nan", "inf", "7.5"])
def test_numbers_are_checked(text):
    number = Number(name="n", label="N", default=1, minimum=0, maximum=1e12)
    with pytest.raises(ControlError) as caught:
        number.parse(text)
    assert caught.value.field == "n"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1T", 10**12), ("7.5B", 7_500_000_000), ("1,024", 1024), ("2e3", 2000), ("70 b", 70 * 10**9)],
)
def test_numbers_are_read_as_people_write_them(text, value):
    assert Number(name="n", label="N", default=1, minimum=0, maximum=1e12).parse(text) == value


def test_a_toggle_reads_its_own_keys():
    toggle = Toggle(name="t", label="T")
    assert [toggle.key(value) for value in (True, False, "on", "off")] == ["on", "off", "on", "off"]


def test_a_problem_of_the_job_stands_beside_its_control():
    with pytest.raises(ControlError, match="KV heads") as caught:
        catalog.get("memory-stack").view_of({"model": "own", "heads": "7"})
    assert caught.value.field == "kv_heads"


# What the book's outline asks the explorers to reproduce.


@pytest.mark.parametrize(
    ("accounting", "gigabytes"),
    [("no-master-12", 840), ("zero-16", 1120), ("megatron-18", 1260), ("megatron-fp16-20", 1400)],
)
def test_memory_stack_states_of_the_articles_70b(accounting, gigabytes):
    assert readouts("memory-stack", accounting=accounting)["states"].value == gigabytes * 1e9


@pytest.mark.parametrize(
    ("state", "gibibytes"),
    [
        ({}, 485),
        ({"tp": 8, "sp": True}, 60.625),
        ({"tp": 8, "sp": True, "recompute": "selective"}, 10.625),
        ({"tp": 8, "recompute": "full"}, 5),
    ],
)
def test_memory_stack_activations_of_the_articles_70b(state, gibibytes):
    assert readouts("memory-stack", **state)["activations"].value == gibibytes * GIB


def test_training_time_of_the_article():
    shown = readouts("training-time", gpus=1, mfu=1.0)
    assert shown["flops"].value == 4.2e23
    assert round(shown["days"].value) == 15580
    shown = readouts("training-time", gpus=2048, target=11)
    assert round(shown["needed"].value, 3) == 0.692


def test_zero_of_the_paper_and_of_the_article():
    paper = readouts("zero", model="7.5b", ranks=64)
    assert [round(paper[f"stage{stage}"].value / 1e9, 1) for stage in range(4)] == [120, 31.4, 16.6, 1.9]
    article = catalog.get("zero").view_of({"model": "70b", "ranks": 8})
    assert [row[4] for row in article.table.rows] == ["1,120 GB", "385 GB", "262.5 GB", "140 GB"]
    assert [row[6] for row in article.table.rows] == ["never", "never", "never", "14"]
    assert [row[8] for row in article.table.rows] == ["2", "2", "2", "3"]


def test_ring_sends_what_the_plan_says():
    from pdtlib.plan.comm import sent_bytes

    for ranks in range(2, 9):
        shown = readouts("ring-all-reduce", ranks=ranks, step=2 * (ranks - 1), size=1_000_000_000)
        assert shown["sent"].value == shown["total"].value
        assert shown["total"].value == pytest.approx(sent_bytes("all_reduce", 1e9, ranks), rel=1e-8)


def test_overlap_hides_what_is_not_exposed():
    shown = readouts("overlap", overlap=False)
    assert shown["exposed"].value == shown["serial"].value == pytest.approx(shown["communication"].value)
    assert readouts("overlap")["exposed"].value < shown["exposed"].value
    assert readouts("overlap", ranks=1)["exposed"].value == 0


@pytest.mark.parametrize(
    "state",
    [
        {"model": "llama3-8b", "dp": 8, "zero": 3, "flash": True},
        {"model": "gpt3-175b", "tp": 8, "sp": True, "dp": 64, "zero": 1},
        {"model": "llama3-70b", "tp": 8, "dp": 16, "zero": 2, "recompute": "full"},
    ],
)
def test_memory_stack_adds_up_to_what_pdt_predict_prints(state):
    from pdtlib.plan.job import loads
    from pdtlib.plan.predict import predict

    view = catalog.get("memory-stack").view_of(state)
    predicted = predict(loads(view.job))["memory"]["max_total"]
    total = next(readout.value for readout in view.readouts if readout.name == "total")
    assert total == pytest.approx(predicted, rel=1e-6)  # the engine also pads shards, by bytes


def test_memory_stack_knows_every_tensor_that_attention_keeps():
    from pdtlib.explore.explorers.memory_terms import ATTENTION, SCORES
    from pdtlib.plan import presets
    from pdtlib.plan.activations import Setting, layer_tensors

    names = set()
    for model in ("gpt2", "llama3-8b", "mixtral-8x7b"):
        for flash in (False, True):
            setting = Setting(seq=64, flash_attention=flash)
            names |= {tensor.name for tensor in layer_tensors(presets.model(model), setting=setting)}
    assert {*ATTENTION, *SCORES} <= names
    others = names - {*ATTENTION, *SCORES}
    assert not [name for name in others if "softmax" in name or "attn" in name or name in ("q", "k", "v")]
