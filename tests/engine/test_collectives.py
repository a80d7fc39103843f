"""Collectives: values, derivatives, what they leave alone, refuse and write into the ledger."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pdtlib.engine.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.self_check import check_backend
from pdtlib.engine.transfers import start_all_gather, start_all_reduce, start_broadcast, start_reduce_scatter
from pdtlib.plan.comm import sent_bytes

DIFFERENTIABLE = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
}


def expected(name: str, inputs: list[torch.Tensor], rank: int) -> torch.Tensor:
    """The definition, from all ranks' inputs."""
    size = len(inputs)
    if name == "all_reduce":
        return sum(inputs)
    if name == "reduce_scatter":
        return sum(inputs).chunk(size)[rank]
    if name == "all_gather":
        return torch.cat(inputs)
    if name == "all_to_all":
        return torch.cat([x.chunk(size)[rank] for x in inputs])
    return inputs[size - 1]


def inputs_of_all(size: int, strided: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (4, 2 * size) if strided else (2 * size, 4)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(size)]
    return [x.t() if strided else x for x in drawn]


def worker() -> dict[str, Any]:
    group = build_mesh().group("dp")
    check_backend(group, device=torch.device("cpu"))
    assert not group.ledger.rows(), "the self-check is not part of a run"
    problems = []
    for strided in (False, True):
        for name, function in DIFFERENTIABLE.items():
            options = {"source": group.size - 1} if name == "broadcast" else {}
            leaves = [x.clone().requires_grad_() for x in inputs_of_all(group.size, strided)]
            x = leaves[group.rank].detach().clone().requires_grad_()
            before = x.detach().clone()
            out = function(x, group, phase="forward", **options)
            wanted = [expected(name, leaves, rank) for rank in range(group.size)]
            weights = [torch.arange(w.numel()).view(w.shape).double() + r for r, w in enumerate(wanted)]
            (out * weights[group.rank]).sum().backward()
            sum((w * v).sum() for w, v in zip(wanted, weights, strict=True)).backward()
            grad = leaves[group.rank].grad
            checks = {
                "value": torch.allclose(out, wanted[group.rank], rtol=0, atol=1e-12),
                "gradient": torch.allclose(x.grad, torch.zeros_like(x) if grad is None else grad),
                "input unchanged": torch.equal(x, before),
                "new tensor": out.data_ptr() != x.data_ptr(),
            }
            problems += [f"{name} strided={strided}: {key}" for key, good in checks.items() if not good]
    return {"problems": problems, "rows": group.ledger.rows(), "size": group.size}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_values_and_derivatives(size: int) -> None:
    for found in spawn(worker, size):
        assert found["problems"] == []
        for row in found["rows"]:
            one = sent_bytes(row["collective"], row["message_bytes"], size)
            assert row["sent_bytes_per_rank"] == row["count"] * one
            if row["phase"] == "forward":
                parts = size if row["collective"] == "all_gather" else 1
                assert row["message_bytes"] == 2 * size * 4 * 8 * parts
        kinds = {(row["collective"], row["phase"]) for row in found["rows"]}
        adjoints = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}
        both = {(name, "forward") for name in DIFFERENTIABLE} | {(name, "backward") for name in adjoints}
        assert kinds == (both if size > 1 else set())


def refusals() -> list[str]:
    group = build_mesh().group("dp")
    strided = torch.zeros(4, 4).t()
    assert not strided.is_contiguous()
    calls = [
        lambda: start_all_reduce(strided, group, phase="x"),
        lambda: start_broadcast(strided, group, phase="x"),
        lambda: start_reduce_scatter(torch.zeros(8), strided, group, phase="x"),
        lambda: start_all_gather(strided, torch.zeros(8), group, phase="x"),
        lambda: start_all_reduce(torch.zeros(4, dtype=torch.float8_e4m3fn), group, phase="x"),
        lambda: start_reduce_scatter(torch.zeros(3), torch.zeros(8), group, phase="x"),
        lambda: start_all_gather(torch.zeros(8), torch.zeros(3), group, phase="x"),
        lambda: reduce_scatter(torch.zeros(3, 2), group),
        lambda: all_to_all(torch.zeros(()), group),
        lambda: all_gather(torch.zeros(()), group),
    ]
    messages = []
    for call in calls:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the texts are compared below
            call()
        messages.append(str(error.value))
    return messages


def test_refuses_what_a_backend_would_get_wrong() -> None:
    for messages in spawn(refusals, 2):
        assert all("contiguous" in text for text in messages[:4])
        assert "float8_e4m3fn cannot be summed; valid: float64" in messages[4]
        assert "a shard of 3 elements on 2 ranks needs a whole of 6, not 8" in messages[5]
        assert "a shard of 3 elements" in messages[6]
        assert "dim 0 must be a multiple of 2" in messages[7]
        assert "dim 0" in messages[8]
        assert "give it one" in messages[9]


def in_place_forms() -> list[bool]:
    """A shard may be the rank's own slice of the whole, as NCCL allows."""
    group = build_mesh().group("dp")
    size, rank = group.size, group.rank
    whole = torch.arange(3.0 * size) + 10 * rank
    start_reduce_scatter(whole.chunk(size)[rank], whole, group, phase="x").wait()
    summed = (size * torch.arange(3.0 * size) + 10 * sum(range(size))).chunk(size)[rank]
    found = [torch.equal(whole.chunk(size)[rank], summed)]
    start_all_gather(whole, whole.chunk(size)[rank], group, phase="x").wait()
    found.append(torch.equal(whole, size * torch.arange(3.0 * size) + 10 * sum(range(size))))
    # Several gathers at once, waited for in another order.
    outs = [torch.empty(5 * size) for _ in range(3)]
    shards = [torch.full((5,), 100.0 * i + rank) for i in range(3)]
    pending = [start_all_gather(o, s, group, phase="x") for o, s in zip(outs, shards, strict=True)]
    for item in reversed(pending):
        item.wait()
    ranks = torch.arange(float(size)).repeat_interleave(5)
    return found + [torch.equal(out, ranks + 100 * i) for i, out in enumerate(outs)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_buffers(size: int) -> None:
    assert all(all(found) for found in spawn(in_place_forms, size))


def broken_backend() -> str:
    """A backend that answers a sum with a mean."""
    group = build_mesh().group("dp")
    right = dist.all_reduce

    def mean(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return right(tensor.div_(group.size), *arguments, **options)

    with mock.patch.object(dist, "all_reduce", mean), pytest.raises(RuntimeError) as error:
        check_backend(group, device=torch.device("cpu"))
    return str(error.value)


def test_self_check_finds_a_wrong_backend() -> None:
    for message in spawn(broken_backend, 2):
        assert message == "backend gloo computes all_reduce wrongly on 2 ranks"


def test_sum_then_divide() -> None:
    """Field report: a mean reduce-scatter of [1,1,1,1] and [2,2,2,2] is [1.5, 1.5] on both ranks."""
    assert spawn(mean_reduce_scatter, 2) == [[1.5, 1.5], [1.5, 1.5]]


def mean_reduce_scatter() -> list[float]:
    group = build_mesh().group("dp")
    return (reduce_scatter(torch.full((4,), group.rank + 1.0), group) / group.size).tolist()


def test_group_of_one_needs_no_backend() -> None:
    group = Group.alone()
    x = torch.arange(4.0, requires_grad=True)
    for function in DIFFERENTIABLE.values():
        out = function(x, group)
        assert torch.equal(out, x)
        assert out.data_ptr() != x.data_ptr()
    assert group.ledger.rows() == []
