"""Reports from the field that need several axes at once, with their own numbers."""

import matrix
import pytest
import torch
from matrix_cases import FACTORS, Case, job_of, name_of
from torch import Tensor, nn

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pipeline import Pipeline
from pdtlib.plan.time.step import bubble_fraction


class Tied(nn.Module):
    """One end of a pipeline: ``x -> x w`` at the beginning, ``x -> x + b w`` at the end."""

    def __init__(self, b: float | None) -> None:
        super().__init__()
        self.tied_weight = nn.Parameter(torch.full((1,), 0.5, dtype=torch.float64))
        self.b = b

    def forward(self, x: Tensor) -> Tensor:
        return x * self.tied_weight if self.b is None else x + self.b * self.tied_weight


def tied_gradients() -> list[tuple[float, float, list[float]]]:
    """For every ZeRO stage: mean gradient after one step, norm, and the weight after each of three steps."""
    mesh = build_mesh({"dp": 2, "pp": 2})
    dp, pp = mesh.group("dp"), mesh.group("pp")
    found = []
    for stage in range(4):
        part = Tied(None if pp.rank == 0 else (10.0, 20.0)[dp.rank])
        pipeline = Pipeline([part], pp, schedule="1f1b")
        replica = pipeline.data_parallel(mesh.data, stage=stage)
        optimizer = ShardedAdamW(replica, lr=0.1)
        gradient, norm, weights = 0.0, 0.0, []
        for step in range(3):
            inputs = [torch.tensor([(1.0, 2.0)[dp.rank]], dtype=torch.float64)]
            pipeline.step(inputs, loss=lambda output, index: output.sum())
            pipeline.finish_gradients()
            if step == 0:
                gradient = float(replica.full_gradients()["tied_weight"])
            norm = optimizer.clip_grad_norm()
            optimizer.step()
            optimizer.zero_grad()
            weights.append(float(replica.full_parameters()["tied_weight"]))
        found.append((gradient, norm, weights))
    return found


def test_b03_tied_embeddings_over_stages_with_a_sharded_optimizer() -> None:
    """Gradients 1 and 2 on the first stage's ranks, 10 and 20 on the last's: 16.5 on every copy.

    Reducing partial and reduced shards over one another gives 16 and 21.5. Both copies stay bitwise equal and
    equal to one process.
    """
    weight = nn.Parameter(torch.full((1,), 0.5, dtype=torch.float64))
    alone = torch.optim.AdamW([weight], lr=0.1)
    expected = []
    for _ in range(3):
        weight.grad = torch.full_like(weight, 16.5)
        alone.step()
        expected.append(float(weight.detach()))
    ranks = spawn(tied_gradients, 4)
    for found in ranks:
        assert found == ranks[0], "copies are bitwise equal"
        for gradient, norm, weights in found:
            assert gradient == norm == 16.5
            assert weights == pytest.approx(expected, abs=1e-12)


def case(**levels: object) -> Case:
    """The plainest case with some levels changed."""
    plain = {factor: values[0] for factor, values in FACTORS.items()}
    return {**plain, **levels}


A13 = [
    case(pp=4, micro_batches=m, schedule=schedule, model="gpt")
    for schedule in ("1f1b", "gpipe", "zb-h1", "dualpipe")
    for m in (1, 2)
]
B05 = [
    case(tp=2, pp=2, schedule="1f1b", model="gpt", sequence=True),
    case(tp=4, zero="1", sequence=True, micro_batches=2),
    case(tp=4, zero="0", model="odd"),
]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str] | None]:
    return matrix.check([*A13, *B05], seconds=300)


def test_a13_fewer_micro_batches_than_stages(verdicts: dict[str, list[str] | None]) -> None:
    """p = 4 with m = 1 and 2: it ends, with loss, gradients and weights of one process."""
    assert {name_of(one): verdicts[name_of(one)] for one in A13} == {name_of(one): [] for one in A13}
    bubbles = {one["micro_batches"]: bubble_fraction(job_of(one)) for one in A13[:2]}
    assert bubbles == {1: pytest.approx(0.75), 2: pytest.approx(0.60)}


def test_b05_what_ranks_repeat_counts_once(verdicts: dict[str, list[str] | None]) -> None:
    """Norms, biases, repeated heads and a tied copy under tp and pp: the norm of one process."""
    assert {name_of(one): verdicts[name_of(one)] for one in B05} == {name_of(one): [] for one in B05}
