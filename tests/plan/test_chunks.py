"""Which layers every rank holds under each schedule, and which of them are recomputed."""

from collections import Counter

import pytest
from hypothesis import given, settings
from strategies import jobs

from pdtlib.plan import flops
from pdtlib.plan.chunks import chunks_of, has_first, has_last, num_recomputed, passed_chunks, split_layers
from pdtlib.plan.job import from_dict, loads, replace, to_toml, validate
from pdtlib.plan.ledger import messages
from pdtlib.plan.memory import one_layer_bytes, setting_of, stage_memory
from pdtlib.plan.params import stages
from pdtlib.plan.placement import rank_tensors
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.step import step_time


def job_with(layers=16, pp=4, micro_batches=8, tied=False, schedule="", vpp=0, **train):
    parallel = {"pp": pp, **({"schedule": schedule} if schedule else {}), **({"vpp": vpp} if vpp else {})}
    return from_dict(
        {
            "model": {
                "layers": layers,
                "hidden": 32,
                "heads": 4,
                "vocab": 64,
                "seq": 16,
                "tied_embeddings": tied,
            },
            "train": {"global_batch": micro_batches, **train},
            "parallel": parallel,
        }
    )


def places(job):
    return [[tuple(chunk.layers) for chunk in chunks_of(job, s)] for s in range(job.parallel.pp)]


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"), [(30, 4, [8, 8, 7, 7]), (10, 3, [4, 3, 3]), (61, 4, [16, 15, 15, 15])]
)
def test_layers_are_never_dropped(layers, pp, sizes):
    """Field report: 30 layers on 4 stages built 28."""
    found = places(job_with(layers, pp))
    assert [len(run) for (run,) in found] == sizes
    assert [layer for (run,) in found for layer in run] == list(range(layers))


def test_chunks_go_round_the_stages():
    """Narayanan 2021, figure 4: with two chunks a stage, layers 1, 2, 9, 10 of 16 lie on the first of 4."""
    assert places(job_with(vpp=2))[0] == [(0, 1), (8, 9)]


def test_zb_v_goes_down_and_comes_back():
    """Qi 2023, section 6: the first rank has the first and the last position, and so reads and judges."""
    job = job_with(schedule="zb-v")
    assert job.parallel.vpp == 2
    assert places(job) == [
        [(0, 1), (14, 15)],
        [(2, 3), (12, 13)],
        [(4, 5), (10, 11)],
        [(6, 7), (8, 9)],
    ]
    assert [has_first(job, stage) for stage in range(4)] == [True, False, False, False]
    assert [has_last(job, stage) for stage in range(4)] == [True, False, False, False]
    assert stage_memory(job, 0).logits > 0 == stage_memory(job, 3).logits
    tied = job_with(schedule="zb-v", tied=True)
    assert [spec.name for spec in rank_tensors(tied, 0)].count("embed.weight") == 1
    assert not any(spec.name == "embed.weight" for spec in rank_tensors(tied, 3))
    assert not [row for row in messages(tied, 0) if row.axis == "pp" and row.phase == "grads"]


def test_zb_v_sends_nothing_where_it_turns():
    """Three boundaries down and three up are crossed by 8 micro-batches; the fourth is inside a rank."""
    job = job_with(schedule="zb-v")
    forward, backward = Counter(), Counter()
    for stage in range(4):
        for row in messages(job, stage):
            if row.axis == "pp" and row.collective == "send":
                (forward if row.phase == "forward" else backward)[stage] += row.count
    assert dict(forward) == {0: 8, 1: 16, 2: 16, 3: 8}
    assert dict(backward) == {0: 8, 1: 16, 2: 16, 3: 8}


def test_dualpipe_holds_both_ends_of_two_copies():
    job = job_with(schedule="dualpipe")
    assert places(job)[0] == [(0, 1, 2, 3), (12, 13, 14, 15)]
    assert [len(passed_chunks(job, stage)) for stage in range(4)] == [1] * 4
    whole = sum(spec.numel for stage in range(4) for spec in rank_tensors(job, stage))
    once = sum(spec.numel for stage in range(4) for spec in rank_tensors(job_with(), stage))
    assert whole == 2 * once


def test_more_chunks_than_layers_are_refused():
    with pytest.raises(ValueError, match="1 to 4 chunks"):
        split_layers(4, 5)


@pytest.mark.parametrize(("schedule", "vpp", "valid"), [("zb-v", 1, (2,)), ("dualpipe", 2, ("interleaved",))])
def test_schedules_with_chunks_of_their_own_take_no_others(schedule, vpp, valid):
    tables = {"model": {"preset": "gpt2"}, "parallel": {"pp": 4, "schedule": schedule, "vpp": vpp}}
    (problem,) = validate(tables)
    assert problem.valid == valid


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_every_position_is_held_once(data):
    job = from_dict(data)
    held = [
        layer for stage in range(job.parallel.pp) for chunk in chunks_of(job, stage) for layer in chunk.layers
    ]
    assert sorted(held) == list(range(job.model.layers))
    assert sum(has_first(job, stage) for stage in range(job.parallel.pp)) == 1
    assert sum(has_last(job, stage) for stage in range(job.parallel.pp)) == 1
    assert [layer for stage in stages(job) for layer in stage.layers] == held


def test_recomputed_layers_are_the_first_of_each_chunk():
    job = job_with(layers=22, vpp=2, recompute="full", recompute_layers=2)
    assert [[chunk.recomputed for chunk in chunks_of(job, stage)] for stage in range(4)] == [[2, 2]] * 4
    many = replace(job, {"train.recompute_layers": 20})
    assert sum(num_recomputed(many, stage) for stage in range(4)) == 22
    assert num_recomputed(job_with(layers=22, vpp=2), 0) == 0


def test_recomputed_layers_in_a_file():
    job = job_with(recompute="full", recompute_layers=3)
    assert loads(to_toml(job)) == job
    assert "recompute_layers = 3" in to_toml(job)
    assert "recompute_layers" not in to_toml(job_with(recompute="full"))


@pytest.mark.parametrize(
    ("train", "field"),
    [
        ({"recompute_layers": 2}, "train.recompute_layers"),
        ({"recompute": "full", "recompute_layers": 13}, "train.recompute_layers"),
        ({"recompute": "full", "recompute_layers": 0}, "train.recompute_layers"),
        ({"recompute": "full", "recompute_layers": 1.5}, "train.recompute_layers"),
    ],
)
def test_recomputed_layers_that_make_no_sense_are_refused(train, field):
    problems = validate({"model": {"preset": "gpt2"}, "train": train})
    assert [problem.field for problem in problems] == [field]


@pytest.mark.parametrize("gpu", ["cpu", "H100-SXM5"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_memory_of_a_part_recomputed(recompute, gpu):
    """Three of five layers keep little, two keep all; a stage without pipeline."""
    tables = {"layers": 5, "pp": 1, "micro_batches": 1, "flash_attention": False}
    job = replace(job_with(**tables, recompute=recompute, recompute_layers=3), {"hardware.gpu": gpu})
    none = replace(job_with(**tables), {"hardware.gpu": gpu})
    full = replace(job, {"train.recompute_layers": 5})
    kept = one_layer_bytes(job, setting_of(none)) - one_layer_bytes(job, setting_of(job))
    held = stage_memory(job, 0).activations
    assert held - stage_memory(full, 0).activations == pytest.approx(2 * kept)
    assert stage_memory(full, 0).activations < held < stage_memory(none, 0).activations + kept


def test_flops_of_a_part_recomputed():
    model = job_with(layers=8).model
    forward = flops.forward_per_token(model)
    part = flops.hardware_flops_per_token(model, recompute="full", recomputed_layers=2)
    assert part - 3 * forward.total == (forward.linear + forward.attention) / 4
    job = job_with(layers=8, pp=2, recompute="full", recompute_layers=1)
    tokens = job.train.global_batch * model.seq
    assert flops.hardware_flops_per_step(job) == pytest.approx(part * tokens)
    whole = replace(job, {"train.recompute_layers": 8})
    assert flops.hardware_flops_per_step(whole) == pytest.approx(
        tokens * (part + 3 * (part - 3 * forward.total))
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("parallel", [{"tp": 4}, {"cp": 4}, {"cp": 4, "context": "ulysses"}])
def test_only_recomputed_layers_send_again(parallel, split):
    """Of 8 layers on one stage 3 run again, each with the messages of any other."""
    job = replace(
        job_with(
            layers=8, pp=1, micro_batches=2, recompute="full", sequence_parallel=split and "tp" in parallel
        ),
        {f"parallel.{name}": value for name, value in parallel.items()},
    )
    part = replace(job, {"train.recompute_layers": 3})
    for all_rows, some_rows in zip(messages(job), messages(part), strict=True):
        if all_rows.phase == "recompute":
            assert some_rows.count * 8 == all_rows.count * 3
        else:
            assert some_rows == all_rows


def test_time_grows_with_the_layers_recomputed():
    job = replace(job_with(layers=8, pp=2, recompute="full"), {"hardware.cluster": "dgx-a100"})
    seconds = [
        step_time(changed, system=system_of(changed)).step_s
        for changed in (replace(job, {"train.recompute_layers": n}) for n in (1, 2, 3, 4, 5))
    ]
    assert seconds[:4] == sorted(set(seconds[:4]))
    assert seconds[3] == seconds[4]  # a chunk has four layers


def test_scaled_rotary_positions_are_a_table_with_limits():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_seq": 8192}
    tables = {"model": {"preset": "llama3-8b", "rope_scaling": scaling}}
    job = from_dict(tables)
    assert job.model.rope_scaling.factor == 8
    assert loads(to_toml(job)) == job
    for field, value in (("factor", 0.5), ("high_freq_factor", 1.0), ("original_seq", 0)):
        problems = validate({"model": {"preset": "llama3-8b", "rope_scaling": {**scaling, field: value}}})
        assert [problem.field for problem in problems] == [f"model.rope_scaling.{field}"]
    (problem,) = validate({"model": {"preset": "gpt2", "rope_scaling": scaling}})
    assert problem.field == "model.rope_scaling"


def test_rotary_base_and_epsilon_are_fields_with_limits():
    tables = {"model": {"preset": "llama3-8b"}}
    assert from_dict(tables).model.rope_theta == 500_000
    assert from_dict({"model": {"preset": "qwen2.5-7b"}}).model.norm_eps == 1e-6
    assert from_dict({"model": {"preset": "gpt2"}}).model.norm_eps == 1e-5
    changed = replace(from_dict(tables), {"model.rope_theta": 1e6, "model.norm_eps": 1e-6})
    assert loads(to_toml(changed)) == changed
    for field, value in (("rope_theta", 0.5), ("rope_theta", "big"), ("norm_eps", 0.0), ("norm_eps", 1.0)):
        (problem,) = validate({"model": {"preset": "llama3-8b", field: value}})
        assert problem.field == f"model.{field}"
