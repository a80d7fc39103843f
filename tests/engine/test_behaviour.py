"""What a replica does besides computing rightly: when it sends, what it survives, what it refuses."""

from typing import Any
from unittest import mock

import pytest
import torch
import zoo
from torch import nn

from pdtlib.engine.data_parallel import data_parallel, ddp, units
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pending import Pending
from pdtlib.observe.trace import Timeline

TOKENS, TARGETS = zoo.batch(0)


def replica_of(model: str, group: Group, **options: Any) -> Replica:
    return data_parallel(zoo.build(model), group, **{"bucket_bytes": 700, **options})


def backward(replica: Replica) -> None:
    zoo.loss_sum(replica(TOKENS), TARGETS).backward()


# --- when messages are sent ---------------------------------------------------------------------------------


def sending_while_backward_goes_on() -> dict[str, Any]:
    """For every bucket: how many gradients existed when it was sent."""
    group = build_mesh().group("dp")
    replica = replica_of("twice", group, stage=0)
    arrived, sent = [], []
    for param in replica.module.parameters():
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(lambda param: arrived.append(param))
    start = ddp.start_all_reduce

    def noted(buffer: torch.Tensor, group: Group, *, phase: str) -> Pending:
        sent.append((len(arrived), buffer.data_ptr()))
        return start(buffer, group, phase=phase)

    with mock.patch.object(ddp, "start_all_reduce", noted):
        backward(replica)
        before_finish = len(sent)
        replica.finish_gradients()
    order = [flat.grads.tensor.data_ptr() for flat in replica.flats]
    return {
        "counts": [count for count, _ in sent],
        "in order": [where for _, where in sent] == order,
        "all sent by backward": before_finish == len(replica.flats),
        "arrived": len(arrived),
    }


def test_buckets_are_sent_in_order_while_backward_goes_on() -> None:
    for found in spawn(sending_while_backward_goes_on, 2):
        assert found["in order"]
        assert found["all sent by backward"]
        assert len(found["counts"]) > 3
        assert found["counts"][0] < found["arrived"] / 2, "the first bucket leaves early"


def ledger_of_accumulation() -> list[list[int]]:
    """Number of gradient messages after each of three backward passes, the first two under no_sync()."""
    group = build_mesh().group("dp")
    found = []
    for stage in range(4):
        replica = replica_of("twice", group, stage=stage)
        group.ledger.clear()
        counts = []
        for number in range(3):
            if number < 2:
                with replica.no_sync():
                    backward(replica)
            else:
                backward(replica)
            counts.append(sum(row["count"] for row in group.ledger.rows() if row["phase"] == "grads"))
        replica.finish_gradients()
        after = sum(row["count"] for row in group.ledger.rows() if row["phase"] == "grads")
        found.append([*counts, after, len(replica.trainable)])
    return found


def test_no_sync_sends_nothing_before_stage_2() -> None:
    for rank in spawn(ledger_of_accumulation, 2):
        for stage, (first, second, third, after, flats) in enumerate(rank):
            whole_kept = stage < 2
            assert (first, second) == ((0, 0) if whole_kept else (flats, 2 * flats))
            assert third == after == (flats if whole_kept else 3 * flats)


def prefetching() -> list[tuple[str, ...]]:
    """ZeRO-3's events in the second step. The root has two buffers, of trainable and of frozen parameters."""
    group = build_mesh().group("dp")
    replica = replica_of("around", group, stage=3)
    model = replica.module
    model.outer = False
    names = {id(flat.shard): flat.slots[0].name.split(".")[1] for flat in replica.flats[2:]}
    events: list[str] = []
    start = units.start_all_gather

    def noted(out: torch.Tensor, shard: torch.Tensor, group: Group, *, phase: str) -> Pending:
        events.append(f"gather {names.get(id(shard), 'root')}")
        return start(out, shard, group, phase=phase)

    for index, layer in enumerate(model.layers):
        layer.norm.register_forward_hook(lambda *_, index=index: events.append(f"run {index}"))
        layer.down.weight.register_post_accumulate_grad_hook(
            lambda _, index=index: events.append(f"gradient {index}")
        )
    with mock.patch.object(units, "start_all_gather", noted):
        for _ in range(2):
            events.clear()
            backward(replica)
            replica.finish_gradients()
            replica.zero_grad()
    return events


def test_zero3_gathers_the_next_block_while_one_computes() -> None:
    assert spawn(prefetching, 2)[0] == [
        "gather root", "gather root", "gather 0", "gather 1", "run 0", "gather 2", "run 1", "run 2",
        "gather 2", "gather 1", "gradient 2", "gather 0", "gradient 1", "gradient 0",
    ]  # fmt: skip


def overlapped() -> list[tuple[str, str]]:
    group = build_mesh().group("dp")
    group.timeline = Timeline()
    replica = replica_of("twice", group, stage=3)
    group.timeline.finish_step()
    backward(replica)
    replica.finish_gradients()
    return sorted({(span.lane, span.name) for span in group.timeline.finish_step()})


def test_messages_and_waits_reach_the_timeline() -> None:
    names = ("backward all_gather", "forward all_gather", "grads reduce_scatter")
    expected = [(lane, name) for lane in ("communication dp", "wait dp") for name in names]
    assert spawn(overlapped, 2)[0] == expected


# --- what it survives ---------------------------------------------------------------------------------------


class Fault(Exception):
    """Raised by a test inside a model."""


def faults() -> list[str]:
    """Break a step in forward and in backward, then train as if nothing had been."""
    group = build_mesh().group("dp")
    expected = zoo.one_process("twice")
    problems = []
    for stage in range(4):
        for where in ("forward", "backward"):
            model = zoo.build("twice")
            replica = data_parallel(model, group, stage=stage, bucket_bytes=700)
            backward(replica)  # knows the order of blocks, so that a prefetch is under way when it breaks
            replica.zero_grad()

            def raising(*_: Any) -> None:
                raise Fault

            if where == "forward":
                handle = model.layers[1].up.register_forward_hook(raising)
            else:
                handle = model.layers[1].up.weight.register_hook(raising)
            try:
                backward(replica)
                problems.append(f"stage {stage}: no exception in {where}")
            except Fault:
                handle.remove()
            got = zoo.train(replica)
            worst = max(zoo.difference(got, expected).values())
            if worst > 1e-11:
                problems.append(f"stage {stage}, {where}: {worst}")
    return problems


def test_an_exception_leaves_the_replica_usable() -> None:
    assert spawn(faults, 2, timeout_s=200) == [[], []]


def evaluation() -> list[str]:
    group = build_mesh().group("dp")
    problems = []
    expected = zoo.build("mixed")(TOKENS)
    for options in ({"stage": 0}, {"stage": 2}, {"stage": 3}, {"stage": 3, "reshard_after_forward": False}):
        replica = replica_of("mixed", group, **options)
        with torch.no_grad():
            outputs = [replica(TOKENS) for _ in range(2)]
        outputs.append(replica(TOKENS))  # with gradients, but no backward pass
        with torch.inference_mode():
            outputs.append(replica(TOKENS))
        if not all(torch.allclose(out, expected, rtol=0, atol=1e-12) for out in outputs):
            problems.append(f"{options}: wrong output")
        replica.zero_grad()
        backward(replica)
        replica.finish_gradients()
        if options["stage"] == 3 and any(flat.params.allocated for flat in replica.flats):
            problems.append(f"{options}: whole parameters are left")
    return problems


def test_evaluation_between_steps() -> None:
    assert spawn(evaluation, 2) == [[], []]


def fresh_parameters() -> float:
    """Forward with gradients, no backward pass, an update: the next forward must use the new parameters."""
    group = build_mesh().group("dp")
    replica = replica_of("twice", group, stage=3, reshard_after_forward=False)
    optimizer = ShardedAdamW(replica, lr=0.1)
    backward(replica)
    replica.finish_gradients()
    replica(TOKENS)
    optimizer.step()
    found = replica(TOKENS)
    model = zoo.build("twice")
    model.load_state_dict({**model.state_dict(), **replica.full_parameters()})
    model.head.weight = model.embed.weight
    return float((found - model(TOKENS)).abs().max().detach())


def test_no_stale_parameters_after_a_step() -> None:
    assert max(spawn(fresh_parameters, 2)) < 1e-12


# --- what it refuses ----------------------------------------------------------------------------------------


def test_a_second_backward_pass_after_sending() -> None:
    replica = replica_of("twice", Group.alone(), stage=0)
    backward(replica)
    with pytest.raises(RuntimeError, match=r"under no_sync\(\), and call finish_gradients\(\)"):
        backward(replica)


def test_wrong_arguments() -> None:
    alone = Group.alone()
    with pytest.raises(ValueError, match="stage=4: valid are 0, 1, 2, 3"):
        replica_of("twice", alone, stage=4)
    with pytest.raises(ValueError, match="blocks: a Linear that is no submodule of Net"):
        replica_of("twice", alone, stage=3, blocks=[nn.Linear(1, 1)])
    model = zoo.build("twice")
    with pytest.raises(ValueError, match=r"blocks: layers\.0\.up lies within layers\.0; give one of them"):
        data_parallel(model, alone, stage=3, blocks=[model.layers[0], model.layers[0].up])
    model = zoo.build("nested")
    with pytest.raises(ValueError, match=r"blocks: layers\.0 is a ModuleList, which has no forward to call"):
        data_parallel(model, alone, stage=3, blocks=[model.layers[0]])
    model = zoo.build("twice")
    data_parallel(model, alone)
    with pytest.raises(ValueError, match="module: this Net is in a replica already; build another one"):
        data_parallel(model, alone)


def test_wrong_groups() -> None:
    model = zoo.build("twice")
    replica = data_parallel(model, Group.alone())
    with pytest.raises(ValueError, match=r"groups: a parameter of shape \(11, 6\) is in two groups"):
        ShardedAdamW(replica, groups=[{"params": [model.embed.weight, model.head.weight]}])
    params = [param for param in model.parameters() if param is not model.layers[2].up.bias]
    with pytest.raises(ValueError, match=r"groups: parameter layers\.2\.up\.bias is in no group"):
        ShardedAdamW(replica, groups=[{"params": params}])


class Opaque(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return object()


def test_a_block_that_hides_its_output() -> None:
    model = nn.Sequential(Opaque(2, 2))
    replica = data_parallel(model, Group.alone(), stage=3, blocks=[model[0]])
    with pytest.raises(TypeError, match="block 0 returned object: ZeRO-3 must see its output tensors"):
        replica(torch.zeros(1, 2))


class Bypass(nn.Module):
    """Calls its block's forward, and so runs none of the block's hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0].forward(x)


def test_a_block_that_is_never_called() -> None:
    replica = data_parallel(Bypass(), Group.alone(), stage=3)
    with pytest.raises(RuntimeError, match=r"was used, but its block layers\.0 was never called"):
        replica(torch.ones(1, 2)).sum().backward()


def test_who_reads_a_freed_parameter_sees_it() -> None:
    replica = replica_of("twice", Group.alone(), stage=3)
    weight = replica.module.layers[0].up.weight
    assert weight.shape == (7, 6)
    assert weight.isnan().all()
    assert sum(param.numel() for param in replica.parameters()) == sum(
        param.numel() for param in zoo.build("twice").parameters()
    )
