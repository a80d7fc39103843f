"""The playground: its numbers are those of ``pdt predict``, its files the job's own, refusals say why."""

import json
import tomllib

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.explore.explorers.playground_job import job_of
from pdtlib.explore.explorers.playground_panels import NAMES, TARGETS
from pdtlib.figures import stages
from pdtlib.plan import presets
from pdtlib.plan.export import export
from pdtlib.plan.job import loads, to_toml
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import JobError
from pdtlib.plan.units import GB

PLAYGROUND = catalog.get("playground")
STATES = [
    {},
    {"model": "gpt2", "tp": 1, "pp": 1, "dp": 4, "global_batch": 4, "cluster": "dgx-a100"},
    {"model": "mixtral-8x7b", "tp": 1, "pp": 4, "dp": 8, "ep": 8, "sequence_parallel": False},
    {"model": "llama3-405b", "dp": 8, "pp": 9, "tp": 8, "cp": 2, "schedule": "zb-h1", "seq": 131072},
    {"model": "gpt3-175b", "pp": 8, "schedule": "interleaved", "vpp": 6, "recompute": "selective"},
    {"model": "llama2-7b", "tp": 1, "pp": 1, "dp": 64, "zero_stage": 3, "sequence_parallel": False},
    {"model": "own", "experts": 64, "top_k": 6, "ffn": 1024, "tp": 1, "pp": 1, "dp": 8, "ep": 8},
]


def panel(view, name):
    return next(each for each in view.panels if each.name == name)


def values_of(state):
    keys = PLAYGROUND.state(state)
    return {control.name: control.parse(keys[control.name]) for control in PLAYGROUND.controls}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.get("model", "default"))
def test_every_part_shows_what_predict_gives(state):
    view = PLAYGROUND.view_of(state)
    prediction = predict(job_of(values_of(state)))
    readouts = {readout.name: readout for readout in view.readouts}
    assert readouts["mfu"].value == prediction["throughput"]["mfu"]
    assert readouts["step"].value == prediction["time"]["step_s"]
    assert readouts["params"].value == prediction["params"]["total"]
    drawn = [0.0] * len(prediction["memory"]["stages"])
    for trace in view.figure["data"]:
        if trace["type"] == "bar":
            drawn = [whole + part for whole, part in zip(drawn, trace["x"], strict=True)]
    overhead = prediction["memory"]["framework_overhead"]
    held = [(stage["total"] + overhead) / GB for stage in prediction["memory"]["stages"]]
    assert drawn == pytest.approx(held)
    time = panel(view, "time")
    assert sum(trace["x"][0] for trace in time.figure["data"]) == pytest.approx(readouts["step"].value)
    rows = panel(view, "messages").table.rows
    assert [row[:3] for row in rows] == [
        (message["axis"], message["phase"], message["collective"]) for message in prediction["comm"]
    ]
    assert (panel(view, "schedule").figure is None) == (len(held) == 1)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.get("model", "default"))
def test_the_files_are_the_jobs_own(state):
    view = PLAYGROUND.view_of(state)
    job = job_of(values_of(state))
    toml, commands = panel(view, "run").files
    assert loads(toml.text) == job
    assert tomllib.loads(toml.text)
    assert view.job == toml.text
    assert "pdt predict job.toml" in commands.text
    for target in TARGETS:
        shown = panel(view, target)
        if shown.files:
            assert {file.name: file.text for file in shown.files} == export(job, to=target).files
        else:
            with pytest.raises(JobError) as refusal:
                export(job, to=target)
            assert [row[0] for row in shown.table.rows] == [each.field for each in refusal.value.problems]
    made = {file.name: file.text for file in panel(view, "deepspeed").files}
    if made:
        keys = {row[0] for row in panel(view, "deepspeed").table.rows}
        assert set(json.loads(made["deepspeed.json"])) <= {key.split(".")[0] for key in keys}


def test_a_refused_job_says_every_reason_with_the_values_that_would_do():
    view = PLAYGROUND.view_of({"tp": 16, "ep": 4, "schedule": "dualpipe", "pp": 3})
    checks = panel(view, "checks")
    assert view.job == ""
    assert [each.name for each in view.panels] == list(NAMES)
    assert len(checks.table.rows) >= 2
    fields = {row[0] for row in checks.table.rows}
    assert any(field.startswith("parallel.") for field in fields)
    assert any(row[2] for row in checks.table.rows)
    assert next(iter(view.readouts)).tone == "bad"


def test_a_number_out_of_range_is_told_beside_its_control():
    with pytest.raises(ControlError) as caught:
        PLAYGROUND.view_of({"dp": "0"})
    assert caught.value.field == "dp"


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.get("model", "default"))
def test_a_job_carried_here_and_back_is_the_same(state):
    view = PLAYGROUND.view_of(state)
    again = PLAYGROUND.view_of({**PLAYGROUND.adopt(view.job)})
    assert loads(again.job) == loads(view.job)


def test_it_takes_the_planners_best_plan_as_it_is():
    job = loads(
        '[model]\npreset = "llama2-70b"\n[train]\nglobal_batch = 256\n[hardware]\ncluster = "dgx-a100"'
    )
    best = plan(job, num_gpus=64, top=1).plans[0]
    state = PLAYGROUND.adopt(to_toml(best.job))
    shown = PLAYGROUND.view_of(state)
    assert {readout.name: readout.value for readout in shown.readouts}["mfu"] == pytest.approx(best.mfu)


def test_more_memory_than_a_gpu_has_is_said():
    view = PLAYGROUND.view_of({"tp": 1, "pp": 1, "dp": 2, "sequence_parallel": False})
    (verdict, *_) = view.readouts
    assert verdict.text == "does not fit"
    assert "do not fit" in view.summary
    assert "do not fit into" in panel(view, "checks").summary
    line = view.figure["layout"]["shapes"][0]
    assert line["x0"] == presets.GPUS["H100-SXM5"].memory_bytes / GB
    assert {part.name for part in stages.PARTS} >= {"params", "activations", "framework"}
