"""Asynchronous and local-update training, on the real corpus and beside synchronous training."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist

from pdtlib.engine.dist import spawn
from pdtlib.plan.job import from_dict
from pdtlib.plan.params import count
from pdtlib.plan.reliability import local_updates
from pdtlib.resilience.asynchronous import local, server
from pdtlib.resilience.asynchronous.server import stale_limit
from pdtlib.resilience.asynchronous.task import FlatAdamW, Task

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)
JOB = {
    "model": {"layers": 1, "hidden": 32, "heads": 2, "vocab": 256, "seq": 32},
    "train": {
        "global_batch": 6,
        "micro_batch": 1,
        "precision": "fp32",
        "learning_rate": 3e-3,
        "clip_grad_norm": 1.0,
    },
}
STEPS = 60


def all_servers() -> list[object]:
    """Every kind of server with three workers, the last of which is slow. The same ranks run all of them."""
    job = from_dict(JOB)
    found = []
    for bound, slow_s in ((None, 0.5), (2, 0.05), (0, 0.05)):
        found.append(server.train(job, updates=STEPS, bound=bound, slow_s=(0.0, 0.0, slow_s)))
        dist.barrier()
    return found


def all_methods() -> list[local.Met]:
    job = from_dict({**JOB, "parallel": {"dp": 3}})
    return [
        local.train(job, method=method, steps=STEPS, every=every)
        for method, every in (("synchronous", 1), ("local-sgd", 1), ("local-sgd", 10), ("diloco", 10))
    ]


@pytest.fixture(scope="module")
def untrained() -> float:
    return Task(from_dict(JOB)).held_out_loss()


@pytest.fixture(scope="module")
def served() -> list[server.Served]:
    found, *others = spawn(all_servers, 4, timeout_s=400)
    assert others == [[None] * 3] * 3
    return found


@pytest.fixture(scope="module")
def met() -> list[list[local.Met]]:
    return spawn(all_methods, 3, timeout_s=400)


def test_staleness_is_measured_and_bounded(served: list[server.Served]) -> None:
    free, two, none = served
    for found in served:
        assert len(found.staleness) == STEPS
        assert sum(found.per_worker) == STEPS
        assert found.staleness[0] == 0, "the first gradient of all is fresh"
    # Without a bound the slow worker's gradients are late by what the fast ones do meanwhile.
    assert max(free.spread) > 3
    assert free.per_worker[2] < STEPS / 3
    assert max(two.spread) <= 3, "a worker may begin when it is 2 ahead, and is then 3 ahead"
    assert max(two.staleness) <= stale_limit(workers=3, bound=2)
    assert max(none.spread) <= 1
    assert max(none.staleness) <= stale_limit(workers=3, bound=0)
    assert none.per_worker == (20, 20, 20)


def test_every_server_learns(
    served: list[server.Served], met: list[list[local.Met]], untrained: float
) -> None:
    """How well depends on the order in which gradients arrive: without a bound, one training in ten ends 0.3
    to 0.9 above the synchronous one."""
    assert untrained == pytest.approx(math.log(256), abs=0.3)
    assert met[0][0].held_out_loss < untrained - 1.5
    for found in served:
        assert found.held_out_loss < untrained - 1.0


def test_a_server_computes_what_one_process_does_in_its_order(served: list[server.Served]) -> None:
    for found in served:
        assert found.held_out_loss == pytest.approx(_repeated(found), abs=2e-3)


def _repeated(found: server.Served) -> float:
    """The loss of one process that takes gradients of old weights, in the order and as old as the server."""
    task = Task(from_dict(JOB))
    optimizer = FlatAdamW(task.weights(), task.job)
    versions = [optimizer.weights.detach().clone()]
    done = Counter[int]()
    for sender, stale in zip(found.senders, found.staleness, strict=True):
        task.set_weights(versions[len(versions) - 1 - stale])
        number = sender + len(found.per_worker) * done[sender]
        gradient, _ = task.gradient(number, first=0, count=task.job.train.global_batch)
        done[sender] += 1
        optimizer.step(gradient)
        versions.append(optimizer.weights.detach().clone())
    task.set_weights(versions[-1])
    return task.held_out_loss()


def test_every_method_learns_and_sends_what_was_planned(met: list[list[local.Met]], untrained: float) -> None:
    synchronous, each_step, apart, diloco = met[0]
    parameters = count(from_dict(JOB).model).total
    planned = local_updates(parameters, workers=3, every=10)
    assert synchronous.sent_bytes_per_step == pytest.approx(planned.synchronous_bytes)
    assert each_step.sent_bytes_per_step == pytest.approx(planned.synchronous_bytes)
    assert apart.sent_bytes_per_step == pytest.approx(planned.per_step_bytes)
    assert diloco.sent_bytes_per_step == pytest.approx(planned.per_step_bytes)
    assert synchronous.drift == 0.0
    assert 0 < each_step.drift < apart.drift
    for found in (each_step, apart, diloco):
        assert found.held_out_loss < untrained - 1.0
        assert found.held_out_loss == pytest.approx(synchronous.held_out_loss, abs=0.5)


def test_all_ranks_end_with_the_same_weights(met: list[list[local.Met]]) -> None:
    """The loss is a mean over ranks; that of one rank alone would differ if its weights did."""
    for ranks in zip(*met, strict=True):
        assert {found.held_out_loss for found in ranks} == {ranks[0].held_out_loss}


def test_synchronous_training_is_that_of_one_process(met: list[list[local.Met]]) -> None:
    (alone,) = spawn(alone_too, 1, timeout_s=200)
    assert met[0][0].held_out_loss == pytest.approx(alone, abs=2e-3)


def alone_too() -> float:
    return local.train(from_dict(JOB), method="synchronous", steps=STEPS).held_out_loss


def refused() -> list[str]:
    job, said = from_dict(JOB), []
    for call in (
        lambda: server.train(job, updates=4, bound=-1),
        lambda: server.train(job, updates=4),
        lambda: local.train(job, method="gossip", steps=4),
        lambda: local.train(job, method="diloco", steps=4, every=3),
    ):
        with pytest.raises(ValueError, match=r"valid|needs") as error:
            call()
        said.append(str(error.value))
    return said


def test_wrong_calls_are_refused() -> None:
    bound, ranks, method, every = spawn(refused, 1)[0]
    assert bound.startswith("bound=-1: valid are 0 or more")
    assert ranks.startswith("ranks=1")
    assert method.startswith("method='gossip': valid are synchronous, local-sgd, diloco")
    assert every.startswith("every=3: valid are divisors of steps=4")


def test_convergence_beside_synchronous_training() -> None:
    """Held-out losses of 50 to 200 steps on the real corpus; benchmarks/asynchronous.py writes the report."""
    report = json.loads((ROOT / "benchmarks" / "results" / "async.json").read_text())
    rows = {(row["method"], row.get("every"), row.get("bound")): row["curve"] for row in report["rows"]}
    synchronous = rows["synchronous", 1, None]
    assert {method for method, _, _ in rows} == {"synchronous", "local-sgd", "diloco", "server"}
    for key, curve in rows.items():
        losses = [point["held_out_loss"] for point in curve]
        assert [point["steps"] for point in curve] == [point["steps"] for point in synchronous]
        assert losses == sorted(losses, reverse=True), f"{key} does not learn all the time"
        assert losses[-1] < report["setting"]["untrained"] - 2
        ahead = [point["held_out_loss"] for point in synchronous]
        assert all(loss >= best for loss, best in zip(losses, ahead, strict=True)), "chapter 9 says so"
    for bound in (0, 2):
        limit = stale_limit(workers=report["setting"]["served"], bound=bound)
        assert all(point["staleness_max"] <= limit for point in rows["server", None, bound])
