"""Bytes sent: ring collectives, ZeRO's volumes, the ledger of a job, the bucket timeline."""

import itertools

import pytest

from pdtlib.plan.comm import COLLECTIVES, ring_steps, sent_bytes, zero_messages
from pdtlib.plan.flats import BUCKET_BYTES, data_parallel_messages, flats, held_bytes
from pdtlib.plan.job import from_dict
from pdtlib.plan.overlap import bucket_timeline, collective_s, prefetch_timeline
from pdtlib.plan.params import count, tensors
from pdtlib.plan.ring import num_steps, transfers
from pdtlib.plan.sharding import buckets, group_units, padded_numel, shard_numel, shard_range
from pdtlib.plan.whole import whole_bytes

SMALL = {"layers": 3, "hidden": 20, "heads": 2, "vocab": 37, "seq": 12, "activation": "swiglu", "ffn": 28}


def small_job(stage, dp, **train):
    train = {"zero_stage": stage, "global_batch": 2 * dp, "precision": "fp32", **train}
    return from_dict({"model": SMALL, "train": train, "parallel": {"dp": dp}})


def test_ring_volumes():
    assert sent_bytes("all_reduce", 800, 8) == 2 * 7 / 8 * 800
    assert sent_bytes("reduce_scatter", 800, 8) == sent_bytes("all_gather", 800, 8) == 7 / 8 * 800
    assert sent_bytes("all_to_all", 800, 8) == sent_bytes("broadcast", 800, 8) == 700
    assert sent_bytes("send", 800, 2) == 800


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "send"])
def test_a_group_of_one_sends_nothing(collective):
    assert sent_bytes(collective, 123, 1) == 0
    assert ring_steps(collective, 1) == 0


@pytest.mark.parametrize("wrong", [("all_reduce", 1, 0), ("allreduce", 1, 2)])
def test_wrong_collectives_are_refused(wrong):
    with pytest.raises(ValueError, match=r"group_size=0|valid: all_reduce"):
        sent_bytes(*wrong)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_ring_itself_sends_what_the_formula_says(ranks):
    """Every rank of the step-by-step ring sends one chunk of an n-th in each of 2 (n - 1) steps."""
    assert num_steps(ranks) == ring_steps("all_reduce", ranks)
    sent = [move.sender for step in range(num_steps(ranks)) for move in transfers(ranks, step)]
    chunk = 840 / ranks
    assert {sent.count(rank) * chunk for rank in range(ranks)} == {sent_bytes("all_reduce", 840, ranks)}


@pytest.mark.parametrize(
    ("micro_batches", "gigabytes"), [(1, (245, 245, 245, 367.5)), (8, (245, 245, 1102.5, 2940))]
)
def test_zero_volumes_of_70b_on_eight_ranks(micro_batches, gigabytes):
    """Once a step for stages 0 and 1; stages 2 and 3 reduce, and stage 3 gathers, in every micro-batch."""
    found = [
        sum(
            row.sent_bytes_per_rank for row in zero_messages(70e9, dp=8, stage=z, micro_batches=micro_batches)
        )
        for z in range(4)
    ]
    assert tuple(total / 1e9 for total in found) == gigabytes


def test_zero_volumes_in_parameters():
    """2, 2, 2 and 3 times the parameters, times (n - 1)/n (ZeRO, section 7); FSDP paper: 2M and 3M."""
    for stage, times in [(0, 2), (1, 2), (2, 2), (3, 3)]:
        rows = zero_messages(1000, dp=4, stage=stage, param_bytes=1, grad_bytes=1)
        assert sum(row.sent_bytes_per_rank for row in rows) == times * 1000 * 3 / 4
    for stage, times in [(0, 2), (1, 2), (2, 8 + 1), (3, 3 * 8)]:
        rows = zero_messages(1000, dp=4, stage=stage, param_bytes=1, grad_bytes=1, micro_batches=8)
        assert sum(row.sent_bytes_per_rank for row in rows) == times * 1000 * 3 / 4
    kept = zero_messages(1000, dp=4, stage=3, param_bytes=1, grad_bytes=1, reshard_after_forward=False)
    assert sum(row.sent_bytes_per_rank for row in kept) == 2 * 1000 * 3 / 4


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("numel", [1, 2, 7, 8, 64, 1001])
def test_shards_are_equal_and_cover_the_buffer(numel, world):
    ranges = [shard_range(numel, world, rank) for rank in range(world)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == padded_numel(numel, world) >= numel
    assert padded_numel(numel, world) - numel < world
    assert {stop - start for start, stop in ranges} == {shard_numel(numel, world)}
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    with pytest.raises(ValueError, match=f"ranks 0 to {world - 1}"):
        shard_range(numel, world, world)


def test_units_take_the_longest_block_name():
    names = ["a.w", "layers.1.w", "layers.10.w", "layers.1.mlp.w"]
    units = group_units(names, ["layers.1", "layers.10"])
    assert {unit.name: unit.members for unit in units} == {
        "": ("a.w",),
        "layers.1": ("layers.1.w", "layers.1.mlp.w"),
        "layers.10": ("layers.10.w",),
    }


def test_buckets_hold_every_tensor_once_within_the_limit():
    sizes = [3, 9, 1, 1, 4, 12, 2]
    found = buckets(sizes, 10)
    assert [index for bucket in found for index in bucket] == list(reversed(range(len(sizes))))
    assert all(sum(sizes[i] for i in bucket) <= 10 or len(bucket) == 1 for bucket in found)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("grad_precision", ["same", "fp32"])
@pytest.mark.parametrize("dp", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("stage", range(4))
def test_held_bytes_are_shares_of_the_model_plus_padding(stage, dp, precision, grad_precision):
    job = small_job(stage, dp, precision=precision, grad_precision=grad_precision)
    held, total, found = held_bytes(job), count(job.model).total, flats(job)
    assert sum(flat.numel for flat in found) == total
    unit = 4 if precision == "fp32" else 2
    grad = 4 if grad_precision == "fp32" else unit
    moments = 8 if precision == "fp32" else 12
    slack = len(found) * (dp - 1)  # padding
    for part, width, sharded in [
        (held.params, unit, stage >= 3),
        (held.grads, grad, stage >= 2),
        (held.optimizer, moments, stage >= 1),
    ]:
        exact = total / (dp if sharded else 1)
        assert part % width == 0
        assert exact <= part / width <= exact + (slack if stage else 0)


def test_stage_3_units_are_the_root_and_the_layers():
    job = small_job(3, 4)
    per_layer = sum(spec.numel for spec in tensors(job.model) if spec.layer == 0)
    rest = sum(spec.numel for spec in tensors(job.model) if spec.layer is None)
    assert [(flat.numel, flat.root) for flat in flats(job)] == [(rest, True)] + [(per_layer, False)] * 3


def test_buckets_of_a_real_model_stay_near_25_mib():
    job = from_dict({"model": {"preset": "gpt2"}, "parallel": {"dp": 2}})
    largest = max(spec.numel for spec in tensors(job.model)) * 2
    sizes = [flat.numel * 2 for flat in flats(job)]
    assert max(sizes) == largest > BUCKET_BYTES  # the embedding has a bucket of its own
    assert all(size <= BUCKET_BYTES for size in sizes if size != largest)


def rows(job):
    return {
        (m.collective, m.phase, m.message_bytes): (m.count, m.sent_bytes_per_rank)
        for m in data_parallel_messages(job)
    }


@pytest.mark.parametrize("stage", range(4))
def test_the_ledger_of_a_small_job_row_by_row(stage):
    """Two micro-batches on four ranks, fp32; one bucket, or a root and three layers."""
    job = small_job(stage, 4)
    total = count(job.model).total
    padded = padded_numel(total, 4) * 4
    layer = padded_numel(sum(spec.numel for spec in tensors(job.model) if spec.layer == 0), 4) * 4
    root = padded_numel(sum(spec.numel for spec in tensors(job.model) if spec.layer is None), 4) * 4
    tiny = 2 * 3 / 4 * 8
    expected = {
        ("all_reduce", "tokens", 8): (1, tiny),
        ("all_reduce", "loss", 8): (1, tiny),
        **({("all_reduce", "grad_norm", 8): (1, tiny)} if stage else {}),
    }
    if stage == 0:
        expected["all_reduce", "grads", total * 4] = (1, 1.5 * total * 4)
    elif stage == 1:
        expected["reduce_scatter", "grads", padded] = (1, 0.75 * padded)
        expected["all_gather", "params", padded] = (1, 0.75 * padded)
    elif stage == 2:
        expected["reduce_scatter", "grads", padded] = (2, 2 * 0.75 * padded)
        expected["all_gather", "params", padded] = (1, 0.75 * padded)
    else:
        expected["all_gather", "forward", root] = (2, 2 * 0.75 * root)
        expected["reduce_scatter", "grads", root] = (2, 2 * 0.75 * root)
        expected["all_gather", "forward", layer] = (6, 6 * 0.75 * layer)
        expected["all_gather", "backward", layer] = (6, 6 * 0.75 * layer)
        expected["reduce_scatter", "grads", layer] = (6, 6 * 0.75 * layer)
    assert rows(job) == expected


def test_keeping_parameters_gathered_saves_the_second_gather():
    kept = rows(small_job(3, 4, reshard_after_forward=False))
    assert not [key for key in kept if key[1] == "backward"]


def test_one_rank_sends_nothing():
    assert all(not data_parallel_messages(small_job(stage, 1)) for stage in range(4))


def test_whole_bytes_by_stage():
    found = [whole_bytes(small_job(stage, 4)) for stage in range(4)]
    assert found[:2] == [0, 0]
    assert found[3] > found[2] > 0
    assert whole_bytes(small_job(3, 1)) == 0


def test_experts_are_reduced_over_fewer_ranks():
    model = {**SMALL, "ffn": 28, "moe": {"experts": 4, "top_k": 2, "ffn": 28}}
    job = from_dict({"model": model, "parallel": {"dp": 4, "ep": 2}})
    sizes = {flat.group_size: 0 for flat in flats(job)}
    for flat in flats(job):
        sizes[flat.group_size] += flat.numel
    by_part = count(job.model).by_part
    assert sizes == {2: by_part["experts"] // 2, 4: count(job.model).total - by_part["experts"]}


def test_buckets_leave_while_the_backward_pass_goes_on():
    line = bucket_timeline(
        [2, 2, 2, 2], limit_bytes=2, backward_s=8, dp=2, bytes_per_s=1, latency_s=0, overlap=True
    )
    sent = [(span.start_s, span.end_s) for span in line.spans if span.lane == "communication"]
    assert sent == [(2, 4), (4, 6), (6, 8), (8, 10)]
    assert (line.exposed_s, line.communication_s, line.end_s) == (2, 8, 10)
    after = bucket_timeline(
        [2, 2, 2, 2], limit_bytes=2, backward_s=8, dp=2, bytes_per_s=1, latency_s=0, overlap=False
    )
    assert after.exposed_s == 8


def test_small_buckets_pay_latency_and_large_ones_start_late():
    def exposed(limit):
        return bucket_timeline(
            [10] * 100, limit_bytes=limit, backward_s=1, dp=8, bytes_per_s=2000, latency_s=2e-3
        ).exposed_s

    assert min(exposed(50), exposed(100), exposed(200)) < min(exposed(10), exposed(1000))


def test_one_rank_has_nothing_to_wait_for():
    line = bucket_timeline([1], limit_bytes=1, backward_s=1, dp=1, bytes_per_s=1, latency_s=1)
    assert (line.exposed_s, line.communication_s) == (0, 0)


def test_alpha_beta_time():
    """2 (n-1) latencies and 2 (n-1)/n of the message over the link."""
    found = collective_s("all_reduce", 1000, 5, bytes_per_s=100, latency_s=0.1)
    assert found == pytest.approx(2 * 4 * 0.1 + 2 * 4 / 5 * 1000 / 100)


@pytest.mark.parametrize(("depth", "seconds"), [(0, 0.8), (1, 0.45), (2, 0.45)])
def test_prefetching_eight_layers(depth, seconds):
    """50 ms of gathering and 50 ms of work a layer: 800 ms in turn, 450 ms with the next one under way."""
    line = prefetch_timeline([0.05] * 8, [0.05] * 8, depth=depth)
    assert line.end_s == pytest.approx(seconds)
    assert line.exposed_s == pytest.approx(seconds - 0.4)


def test_prefetching_holds_at_most_depth_layers_ahead():
    gathers, computes = [0.01] * 6, [0.1] * 6
    for depth in (1, 2):
        line = prefetch_timeline(gathers, computes, depth=depth)
        start = {s.name: s.start_s for s in line.spans if s.lane == "communication"}
        end = {s.name: s.end_s for s in line.spans if s.lane == "compute"}
        for layer in range(depth + 1, 6):
            assert start[f"layer {layer}"] >= end[f"layer {layer - depth - 1}"] - 1e-12


def test_deeper_prefetching_helps_uneven_layers():
    gathers, computes = [0.1, 0.01, 0.3, 0.01], [0.2, 0.2, 0.01, 0.2]
    ends = [prefetch_timeline(gathers, computes, depth=depth).end_s for depth in (0, 1, 2)]
    assert ends[0] > ends[1] > ends[2]


@pytest.mark.parametrize("wrong", [([], [], 1), ([1], [1, 2], 1), ([1], [1], -1)])
def test_wrong_prefetching_is_refused(wrong):
    with pytest.raises(ValueError, match="valid: "):
        prefetch_timeline(wrong[0], wrong[1], depth=wrong[2])
