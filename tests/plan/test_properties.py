"""What holds for every job that can work: parts sum to wholes, more sharding never costs memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs

from pdtlib.plan import flats, params
from pdtlib.plan.chunks import layout_of
from pdtlib.plan.job import JobError, from_dict, loads, replace, to_json, to_toml, validate
from pdtlib.plan.memory import chunks_in_flight, stages_memory
from pdtlib.plan.memory_timeline import schedule_of
from pdtlib.plan.placement import rank_tensors
from pdtlib.plan.predict import predict
from pdtlib.plan.schedule import check, lower
from pdtlib.plan.sharding import padded_numel
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.step import step_time

examples = settings(max_examples=60, deadline=None)


@examples
@given(jobs())
def test_a_valid_job_survives_toml_and_json(data):
    job = from_dict(data)
    assert validate(data) == validate(job) == []
    assert loads(to_toml(job)) == job
    assert loads(to_json(job), "json") == job
    assert replace(job, {}) == job


@examples
@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_toml(text):
    job = from_dict({"model": {"preset": "gpt2", "name": text}})
    assert loads(to_toml(job)) == job


@examples
@given(jobs())
def test_layers_and_parameters_sum_to_the_model(data):
    job = from_dict(data)
    stages = params.stages(job)
    layers = [layer for stage in stages for layer in stage.layers]
    assert sorted(layers) == list(range(job.model.layers))
    count = params.count(job.model)
    assert sum(stage.params - stage.tied_copy for stage in stages) == count.total
    assert sum(count.by_part.values()) == count.total >= count.active
    result = predict(job)
    assert [stage["layers"] for stage in result["layout"]["stages"]] == [len(s.layers) for s in stages]


@examples
@given(jobs())
def test_the_batch_is_cut_without_rest(data):
    job = from_dict(data)
    pieces = job.gradient_accumulation * job.train.micro_batch * job.parallel.dp
    assert pieces == job.train.global_batch


@examples
@given(jobs())
def test_no_parameter_is_lost_between_the_ranks_of_a_stage(data):
    """Over tp, what a stage's ranks hold is the stage, plus what is repeated or padded on purpose."""
    job = from_dict(data)
    tp, ep, model = job.parallel.tp, job.parallel.ep, job.model
    for stage in params.stages(job):
        whole = dict.fromkeys(("split", "repeated"), 0)
        for spec in rank_tensors(replace(job, {"parallel.tp": 1, "parallel.ep": 1}), stage.index):
            repeated = spec.part in ("norm", "positions", "router") or spec.name.endswith(
                ("o.bias", "down.bias", "q_norm.weight", "k_norm.weight")
            )
            copies = max(1, tp // model.kv_heads) if ".attn.k." in spec.name or ".attn.v." in spec.name else 1
            share = ep if spec.part == "experts" else 1
            numel = spec.numel
            if spec.part in ("embedding", "head"):
                numel = padded_numel(model.vocab, tp) * model.hidden
            whole["repeated" if repeated else "split"] += numel * (tp if repeated else copies) / share
        held = tp * sum(spec.numel for spec in rank_tensors(job, stage.index))
        assert held == pytest.approx(sum(whole.values()))


@examples
@given(jobs())
def test_flat_buffers_hold_every_parameter_of_the_rank(data):
    job = from_dict(data)
    for stage in range(job.parallel.pp):
        held = sum(spec.numel for spec in rank_tensors(job, stage))
        assert sum(flat.numel for flat in flats.flats(job, stage)) == held


@examples
@given(jobs())
def test_the_parts_of_memory_sum_and_none_is_negative(data):
    for stage in predict(data)["memory"]["stages"]:
        total = stage.pop("total")
        assert total == pytest.approx(sum(stage.values()))
        assert min(stage.values()) >= 0


@examples
@given(jobs(), st.integers(0, 2))
def test_a_higher_zero_stage_never_holds_more(data, stage):
    """But for the padding of its buffers, at most an element a rank and buffer."""
    low, high = (replace(from_dict(data), {"train.zero_stage": stage + extra}) for extra in (0, 1))
    for index in range(low.parallel.pp):
        padding = 16 * sum(flat.group_size for flat in (*flats.flats(low, index), *flats.flats(high, index)))
        assert flats.held_bytes(high, index).total <= flats.held_bytes(low, index).total + padding


@examples
@given(jobs())
def test_more_ranks_never_hold_more_states(data):
    """Doubling dp never raises what a rank holds, but for padding."""
    job = from_dict(data)
    batch = 2 * job.train.global_batch
    wide = replace(job, {"parallel.dp": 2 * job.parallel.dp, "train.global_batch": batch})
    for index in range(job.parallel.pp):
        padding = 16 * sum(flat.group_size for flat in flats.flats(wide, index))
        assert flats.held_bytes(wide, index).total <= flats.held_bytes(job, index).total + padding


@examples
@given(jobs())
def test_more_recomputation_and_sequence_parallelism_never_keep_more(data):
    """Full recomputation adds the layer at work, so it is compared without it only from two layers on."""
    job = from_dict(data)

    def kept(**train):
        changed = replace(job, {f"train.{name}": value for name, value in train.items()})
        return [stage.activations for stage in stages_memory(changed)]

    selective, none = kept(recompute="selective"), kept(recompute="none")
    assert all(a <= b for a, b in zip(selective, none, strict=True))
    split, whole = kept(sequence_parallel=True), kept(sequence_parallel=False)
    assert all(a <= b for a, b in zip(split, whole, strict=True))


@examples
@given(jobs())
def test_context_parallelism_never_keeps_more(data):
    changes = {"model.seq": 4 * from_dict(data).model.seq, "model.dropout": 0.0}
    job = replace(from_dict(data), changes)
    split = replace(job, {"parallel.cp": 2 * job.parallel.cp, "parallel.context": "ring"})
    for a, b in zip(stages_memory(split), stages_memory(job), strict=True):
        assert a.activations <= b.activations
        assert a.logits <= b.logits


@examples
@given(jobs())
def test_in_flight_is_bounded_by_the_micro_batches_and_falls_along_the_pipeline(data):
    job = from_dict(data)
    kept = [chunks_in_flight(job, stage) for stage in range(job.parallel.pp)]
    assert all(1 <= chunks <= job.gradient_accumulation * job.parallel.vpp for chunks in kept)
    assert kept == sorted(kept, reverse=True)


@examples
@given(jobs(), st.sampled_from(["dp", "tp", "pp", "cp", "ep"]), st.sampled_from([3, 5, 7]))
def test_a_refused_degree_comes_with_degrees_that_are_not(data, axis, degree):
    """Whatever validate suggests for a degree removes its complaint about that degree."""
    data["parallel"][axis] = degree
    for problem in validate(data):
        if problem.field != f"parallel.{axis}":
            continue
        assert problem.valid
        for value in problem.valid[:4]:
            data["parallel"][axis] = value
            messages = {p.message for p in validate(data) if p.field == problem.field}
            assert problem.message not in messages


def step_s(job, **changes):
    """Predicted seconds of a step on A100s."""
    changed = replace(job, {"hardware.cluster": "dgx-a100", **changes})
    return step_time(changed, system=system_of(changed)).step_s


@examples
@given(jobs())
def test_more_work_never_takes_less_time(data):
    job = from_dict(data)
    base = step_s(job)
    longer = job.train.global_batch * 2
    assert step_s(job, **{"train.global_batch": longer}) > base
    assert step_s(job, **{"model.layers": job.model.layers * 2}) >= base
    # The shares of a vocabulary of one word are padding mostly: bytes may round to a few less.
    assert step_s(job, **{"model.vocab": job.model.vocab * 4}) >= base * (1 - 1e-5)


@examples
@given(jobs())
def test_more_recomputation_never_takes_less_time(data):
    job = from_dict(data)
    none, selective, full = (
        step_s(job, **{"train.recompute": kind}) for kind in ("none", "selective", "full")
    )
    assert none <= selective + 1e-12
    assert selective <= full + 1e-12


@examples
@given(jobs())
def test_a_slower_network_never_takes_less_time(data):
    job = from_dict(data)
    fast, slow = (step_s(job, **{"hardware.inter": link}) for link in ("ib-ndr-400", "ib-hdr-100"))
    assert fast <= slow + 1e-12


@examples
@given(jobs())
def test_the_parts_of_time_sum_and_none_is_negative(data):
    time = predict({**data, "hardware": {"cluster": "dgx-a100"}})["time"]
    parts = [time["compute_s"], time["bubble_s"], *time["exposed_comm_s"].values()]
    assert time["step_s"] == pytest.approx(sum(parts))
    assert min(parts) >= 0


def fullest(job):
    """States of the fullest rank."""
    return max(flats.held_bytes(job, stage).total for stage in range(job.parallel.pp))


@examples
@given(jobs(), st.sampled_from(["tp", "pp", "ep"]))
def test_a_larger_degree_never_holds_more_states(data, axis):
    """Along every axis of the model. What physics and layouts allow it to add is named and no more than that:
    padding of shards and vocabulary, KV heads that are repeated, the second copy of a tied embedding."""
    job = from_dict(data)
    changes = {f"parallel.{axis}": 2 * getattr(job.parallel, axis)}
    if axis != "ep":
        changes["hardware.n_gpus"] = 2 * job.parallel.world_size
        changes["parallel.dp"] = job.parallel.dp
    try:
        more = replace(job, changes)
    except JobError:
        return  # the degree does not divide this job
    slack = 16 * sum(
        flat.group_size
        for each in (job, more)
        for s in range(each.parallel.pp)
        for flat in flats.flats(each, s)
    )
    slack += 16 * 2 * 2 * job.model.hidden * more.parallel.tp  # a row of embedding and of head, padded
    assert fullest(more) <= fullest(job) + slack


@examples
@given(jobs())
def test_tensor_parallelism_never_keeps_more_activations(data):
    """But for what embedding and loss keep of a cut vocabulary, 3 bytes a token."""
    job = from_dict(data)
    try:
        more = replace(
            job, {"parallel.tp": 2 * job.parallel.tp, "hardware.n_gpus": 2 * job.parallel.world_size}
        )
    except JobError:
        return
    tokens = job.train.micro_batch * job.model.seq
    for a, b in zip(stages_memory(more), stages_memory(job), strict=True):
        assert a.activations <= b.activations + 4 * tokens * job.gradient_accumulation
        assert a.logits <= b.logits + 4 * tokens * job.gradient_accumulation


@examples
@given(jobs(), st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"]))
def test_the_table_of_any_job_is_legal(data, schedule):
    """Each action once, dependencies kept, messages in an order that cannot deadlock; all layers in place."""
    job = from_dict(data)
    pp = max(2, job.parallel.pp)
    vpp = {"interleaved": 2, "zb-v": 2}.get(schedule, 1)
    job = replace(
        job,
        {
            "parallel.pp": pp,
            "parallel.vpp": vpp,
            "parallel.schedule": schedule,
            "model.layers": job.model.layers * 4,
        },
    )
    table = schedule_of(job)
    check(table)
    lower(table)
    assert table.layout == layout_of(job)
    assert table.microbatches == job.gradient_accumulation
