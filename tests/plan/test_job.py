"""Jobs in and out, and every way in which one can be wrong."""

import json

import pytest

from pdtlib.plan import presets
from pdtlib.plan.job import (
    Job,
    JobError,
    Model,
    from_dict,
    load,
    loads,
    replace,
    to_dict,
    to_json,
    to_toml,
    validate,
)

TINY = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32}


def fields_of(data):
    return [problem.field for problem in validate(data)]


def only_problem(data):
    problems = validate(data)
    assert len(problems) == 1, problems
    return problems[0]


def test_omitted_fields_follow_the_family():
    gpt = Model(**TINY)
    assert (gpt.norm, gpt.positions, gpt.biases, gpt.ffn) == ("layernorm", "learned", "all", 256)
    llama = Model(**TINY, activation="swiglu")
    assert (llama.norm, llama.positions, llama.biases, llama.ffn) == ("rmsnorm", "rotary", "none", 256)
    assert (gpt.kv_heads, gpt.head_dim) == (4, 16)


def test_dp_follows_the_processes_and_the_batch_follows_dp():
    job = from_dict({"model": TINY, "parallel": {"tp": 2, "pp": 2}, "hardware": {"n_gpus": 12}})
    assert (job.parallel.dp, job.train.global_batch, job.gradient_accumulation) == (3, 3, 1)


def test_a_cluster_stands_for_its_fields():
    job = from_dict({"model": TINY, "hardware": {"cluster": "dgx-a100", "n_gpus": 16}})
    assert (job.hardware.gpu, job.hardware.inter, job.parallel.dp) == ("A100-SXM4-80", "ib-hdr-200", 16)


@pytest.mark.parametrize("name", presets.MODELS)
def test_every_preset_is_a_job_and_survives_toml_and_json(name):
    job = from_dict({"model": {"preset": name}})
    assert job.model.name == name
    assert loads(to_toml(job)) == job
    assert loads(to_json(job), "json") == job
    assert validate(job) == []


def test_fields_given_beside_a_preset_win():
    job = from_dict({"model": {"preset": "llama3-8b", "seq": 2048, "name": "mine"}})
    assert (job.model.seq, job.model.name, job.model.layers) == (2048, "mine", 32)


def test_load_tells_json_by_its_name(tmp_path):
    job = from_dict({"model": TINY})
    (tmp_path / "job.json").write_text(to_json(job))
    (tmp_path / "job.toml").write_text(to_toml(job))
    assert load(tmp_path / "job.json") == load(str(tmp_path / "job.toml")) == job


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("[model\n", "toml", "TOML"),
        ("{", "json", "JSON"),
        ('{"model": {"seq": 1, "seq": 2}}', "json", "'seq' given twice"),
        ("[]", "json", "a list"),
    ],
    ids=["toml", "json", "twice", "list"],
)
def test_what_is_not_a_job_file_is_refused(text, kind, part):
    with pytest.raises(JobError, match=part):
        loads(text, kind)


@pytest.mark.parametrize(("text", "kind"), [("[" * 100_000, "json"), ("x = " + "[" * 100_000, "toml")])
def test_deep_nesting_is_refused(text, kind):
    with pytest.raises(JobError, match="nested too deeply"):
        loads(text, format=kind)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="not UTF-8"):
        load(tmp_path / "job.toml")


def test_a_byte_order_mark_is_no_part_of_the_job(tmp_path):
    job = from_dict({"model": TINY})
    for name, text in (("job.json", to_json(job)), ("job.toml", to_toml(job))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert load(tmp_path / name) == job


def test_replace_lets_followers_follow():
    job = from_dict({"model": TINY, "hardware": {"n_gpus": 4}})
    assert replace(job, {"parallel.dp": 8, "train.global_batch": 8}).hardware.n_gpus == 8
    assert replace(job, {"hardware.n_gpus": 2}).parallel.dp == 2
    assert replace(job, {"model.heads": 8}).model.kv_heads == 8
    assert replace(job, {"model.preset": "gpt2"}).model.layers == 12
    assert (
        replace(job, {"model.moe.experts": 4, "model.moe.top_k": 2, "model.moe.ffn": 32}).model.moe.experts
        == 4
    )
    with pytest.raises(JobError, match="layers"):
        replace(job, {"model.layers.x": 1})
    with pytest.raises(JobError, match="did you mean 'heads'"):
        replace(job, {"model.head": 2})


def test_replace_changes_nothing_else():
    job = from_dict({"model": {"preset": "llama3-8b"}, "train": {"precision": "fp16", "global_batch": 64}})
    changed = replace(job, {"train.zero_stage": 2})
    assert to_dict(changed) == {**to_dict(job), "train": {**to_dict(job)["train"], "zero_stage": 2}}


def test_every_problem_is_reported_at_once():
    problems = validate(
        {
            "model": {**TINY, "hiden": 1, "activation": "relu", "layers": 0, "dropout": 1.0},
            "train": {"global_batch": 7, "precision": "bf61", "sequence_parallel": "yes"},
            "parallel": {"dp": 2, "tp": 3, "cp": 5},
            "hardware": {"gpu": "A1000", "n_gpus": 4},
            "traim": {},
        }
    )
    assert {problem.field for problem in problems} == {
        "traim",
        "model.hiden",
        "model.activation",
        "model.layers",
        "model.dropout",
        "train.precision",
        "train.sequence_parallel",
        "train.global_batch",
        "parallel.tp",
        "parallel.cp",
        "hardware.gpu",
        "hardware.n_gpus",
    }
    assert all(problem.message for problem in problems)


def test_a_wrong_field_does_not_make_others_look_wrong():
    assert fields_of({"model": {**TINY, "heads": "four"}, "parallel": {"tp": 2}}) == ["model.heads"]
    assert fields_of({"model": {"preset": "lama3-8b"}, "parallel": {"tp": 8}}) == ["model.preset"]
    assert fields_of({"model": TINY, "parallel": {"dp": 0}, "train": {"global_batch": 8}}) == ["parallel.dp"]
    assert fields_of({"model": {**TINY, "hidden": None}, "parallel": {"tp": 2}}) == ["model.hidden"]


@pytest.mark.parametrize(
    ("section", "wrong", "suggestion"),
    [
        ("model", {"kv_head": 1}, "kv_heads"),
        ("train", {"zero": 1}, "zero_stage"),
        ("parallel", {"PP": 1}, "pp"),
        ("hardware", {"num_gpus": 1}, "n_gpus"),
    ],
)
def test_an_unknown_field_names_the_nearest_known_one(section, wrong, suggestion):
    data = {"model": dict(TINY)}
    data.setdefault(section, {}).update(wrong)
    problem = only_problem(data)
    assert problem.field == f"{section}.{next(iter(wrong))}"
    assert repr(suggestion) in problem.message
    assert suggestion in problem.valid


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.zero_stage", 4),
        ("train.zero_stage", True),
        ("train.zero_stage", 1.0),
        ("train.micro_batch", "2"),
        ("train.learning_rate", float("nan")),
        ("train.learning_rate", float("inf")),
        ("train.learning_rate", -1),
        ("train.seed", -1),
        ("train.reshard_after_forward", 1),
        ("model.dropout", 1),
        ("model.name", "half \ud800"),
        ("model.name", 3),
        ("model.moe", 3),
        ("model.moe", {"experts": 2}),
        ("parallel.schedule", "1F1B"),
        ("parallel.context", None),
        ("model.layers", 10**9),
    ],
)
def test_wrong_kinds_and_values_are_refused_at_their_field(path, value):
    data = {"model": dict(TINY)}
    section, _, name = path.partition(".")
    data.setdefault(section, {})[name] = value
    problems = validate(data)
    assert problems
    assert all(problem.field.startswith(path) for problem in problems)


def test_the_nearest_valid_batches_are_named():
    """Field report: 256 sequences on 7 replicas of 2."""
    problem = only_problem(
        {"model": TINY, "train": {"global_batch": 256, "micro_batch": 2}, "parallel": {"dp": 7}}
    )
    assert (problem.field, problem.valid) == ("train.global_batch", (252, 266))


def test_accumulation_divides_by_replicas_not_by_processes():
    """Field report: 8 processes, two stages, 256 sequences in micro-batches of 4: 16 of them, not 8."""
    job = from_dict(
        {
            "model": TINY,
            "train": {"global_batch": 256, "micro_batch": 4},
            "parallel": {"pp": 2},
            "hardware": {"n_gpus": 8},
        }
    )
    assert (job.parallel.dp, job.gradient_accumulation) == (4, 16)


@pytest.mark.parametrize(
    ("model", "train", "parallel", "hardware", "field"),
    [
        ({"kv_heads": 3}, {}, {}, {}, "model.kv_heads"),
        ({"hidden": 65}, {}, {}, {}, "model.hidden"),
        ({"positions": "rotary", "head_dim": 15}, {}, {}, {}, "model.head_dim"),
        ({"heads": 128}, {}, {}, {}, "model.heads"),
        ({}, {}, {"vpp": 2}, {}, "parallel.vpp"),
        ({"dropout": 0.1}, {}, {"cp": 2}, {}, "model.dropout"),
        ({"seq": 34}, {}, {"cp": 2}, {}, "parallel.cp"),
        ({"kv_heads": 2}, {}, {"tp": 2, "cp": 2, "context": "ulysses"}, {}, "parallel.cp"),
        ({"ffn": 255}, {}, {"tp": 2}, {}, "parallel.tp"),
        ({"heads": 12, "hidden": 96, "kv_heads": 3}, {}, {"tp": 4}, {}, "parallel.tp"),
        ({}, {}, {"pp": 5}, {}, "parallel.pp"),
        ({}, {"global_batch": 2}, {"pp": 2, "vpp": 3}, {}, "parallel.vpp"),
        ({}, {"global_batch": 2}, {"pp": 2, "vpp": 2, "schedule": "gpipe"}, {}, "parallel.schedule"),
        ({"layers": 6}, {}, {"pp": 3, "schedule": "dualpipe"}, {}, "parallel.schedule"),
        ({}, {}, {"dp": 2, "ep": 2}, {}, "parallel.ep"),
        ({"moe": {"experts": 3, "top_k": 1, "ffn": 8}}, {}, {"dp": 2, "ep": 2}, {}, "parallel.ep"),
        ({"moe": {"experts": 4, "top_k": 5, "ffn": 8}}, {}, {}, {}, "model.moe.top_k"),
        ({"moe": {"experts": 4, "top_k": 1, "ffn": 8}, "ffn": 9}, {}, {}, {}, "model.ffn"),
        ({}, {}, {"cp": 3}, {}, "parallel.cp"),
        ({}, {}, {"cp": 8, "context": "ulysses"}, {}, "parallel.cp"),
        ({"seq": 30}, {"sequence_parallel": True}, {"tp": 4}, {}, "model.seq"),
        ({}, {}, {"dp": 2}, {"n_gpus": 3}, "hardware.n_gpus"),
        ({}, {}, {"tp": 2}, {"n_gpus": 3}, "hardware.n_gpus"),
        ({}, {"precision": "fp8"}, {}, {"gpu": "A100-SXM4-80"}, "train.precision"),
        ({}, {}, {}, {"inter": "string"}, "hardware.inter"),
        ({}, {}, {}, {"cluster": "dgx-9"}, "hardware.cluster"),
    ],
)
def test_fields_that_do_not_fit_each_other(model, train, parallel, hardware, field):
    data = {"model": {**TINY, **model}, "train": train, "parallel": parallel, "hardware": hardware}
    assert only_problem(data).field == field


@pytest.mark.parametrize(
    ("model", "train", "parallel"),
    [
        ({"seq": 30, "vocab": 255}, {}, {"dp": 3}),
        ({"vocab": 255}, {}, {"tp": 2}),  # padded
        ({"seq": 34}, {}, {"cp": 2, "context": "ulysses"}),
        ({"heads": 8, "kv_heads": 2}, {}, {"tp": 4}),  # KV heads are repeated
        ({"layers": 30}, {}, {"pp": 4}),  # layers need not divide evenly
        ({}, {"global_batch": 1}, {"pp": 4}),  # fewer micro-batches than stages
        ({}, {"global_batch": 3}, {"pp": 2, "vpp": 2}),  # the last round of micro-batches is not full
        ({"moe": {"experts": 4, "top_k": 2, "ffn": 8}}, {}, {"dp": 2, "cp": 2, "ep": 4}),
    ],
)
def test_odd_but_possible_jobs_are_not_refused(model, train, parallel):
    assert validate({"model": {**TINY, **model}, "train": train, "parallel": parallel}) == []


def test_suggested_values_work():
    data = {"model": {**TINY, "heads": 6, "hidden": 96}, "parallel": {"tp": 4}}
    valid = only_problem(data).valid
    assert valid == (1, 2, 3, 6)
    assert all(
        "parallel.tp"
        not in fields_of({**data, "parallel": {"tp": tp}, "model": {**data["model"], "vocab": 252}})
        for tp in (1, 2, 6)
    )


def test_validate_takes_a_job_built_in_python():
    assert validate(Job(model=Model(**TINY))) == []
    assert [problem.field for problem in validate(Job(model=Model(**{**TINY, "layers": -1})))] == [
        "model.layers"
    ]


def test_problems_read_as_one_line_each():
    with pytest.raises(JobError) as caught:
        from_dict({"model": {**TINY, "seq": 0}, "train": {"zero_stage": 9}})
    assert str(caught.value).splitlines() == [
        "model.seq: must be between 1 and 1000000000000, not 0",
        "train.zero_stage: must be between 0 and 3, not 9 (valid: 0, 1, 2, 3)",
    ]


def test_the_dict_of_a_job_is_json():
    job = from_dict({"model": {"preset": "mixtral-8x7b"}})
    assert from_dict(json.loads(json.dumps(to_dict(job)))) == job
