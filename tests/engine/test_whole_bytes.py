"""What ZeRO holds whole for a moment, in every schedule: counted on real ranks, equal to the plan."""

import pytest

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients, micro_batches
from pdtlib.plan.flats import held_bytes
from pdtlib.plan.job import from_dict
from pdtlib.plan.schedule import FAMILIES
from pdtlib.plan.spec import Job
from pdtlib.plan.whole import whole_bytes

MODEL = {"layers": 7, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 256, "seq": 8}
CASES = (  # micro-batches, reshard_after_forward, tied_embeddings
    (1, True, True),
    (5, True, False),
    (1, False, False),
    (2, False, True),
    (5, False, True),
    (5, False, False),
)
SCHEDULES = [name for name in FAMILIES if name not in ("article", "naive", "zb-auto")]


def job(schedule: str, micro_batches: int, *, tied: bool = False, pp: int = 2, **train: object) -> Job:
    chunks = 1 if schedule == "dualpipe" else FAMILIES[schedule].chunks or 2
    parallel = {"dp": 2, "pp": pp, "schedule": schedule, "vpp": chunks}
    if pp == 1:
        parallel = {"dp": 2}
    return from_dict(
        {
            "model": {**MODEL, "tied_embeddings": tied},
            "train": {
                "zero_stage": 3,
                "precision": "fp32",
                "micro_batch": 1,
                "global_batch": 2 * micro_batches,
                **train,
            },
            "parallel": parallel,
        }
    )


def jobs(pp: int) -> list[Job]:
    found = [job("zb-v" if pp > 1 else "1f1b", 3, tied=tied, pp=pp, zero_stage=2) for tied in (False, True)]
    for schedule in SCHEDULES if pp > 1 else ["1f1b"]:
        for count, reshard, tied in CASES:
            found.append(job(schedule, count, tied=tied, pp=pp, reshard_after_forward=reshard))
    return found


def mixtures(pp: int) -> list[Job]:
    """Experts on both ranks, or each rank its own: alone in their buffers, which come and go as well."""
    model = {**MODEL, "ffn": 32, "moe": {"experts": 4, "top_k": 2, "ffn": 32}}
    return [
        from_dict(
            {
                "model": model,
                "train": {"zero_stage": stage, "precision": "fp32", "micro_batch": 1, "global_batch": 4},
                "parallel": {"dp": 2, "ep": ep, "pp": pp},
            }
        )
        for stage in (2, 3)
        for ep in (1, 2)
    ]


def counted(jobs: list[Job]) -> list[tuple[int, int, int]]:
    """(pipeline stage, most bytes in a step, bytes left after it) of each job."""
    found, meshes = [], {}
    for each in jobs:
        ep = each.parallel.ep
        if ep not in meshes:
            meshes[ep] = build_mesh(each.parallel)
        mesh = meshes[ep]
        parts = parallelize(each, mesh)
        optimizer = ShardedAdamW(parts.replica)
        corpus = Corpus(vocab=each.model.vocab)
        batches = Batches(corpus, seq=each.model.seq, global_batch=each.train.global_batch, seed=0)
        whole = parts.replica.whole
        whole.begin()
        compute_gradients(parts, optimizer, micro_batches(parts, batches, 0), step=0, max_norm=1.0)
        left = whole.now - (
            held_bytes(each, mesh.group("pp").rank).params if each.train.zero_stage == 2 else 0
        )
        found.append((mesh.group("pp").rank, whole.most - whole.now, left))
    return found


@pytest.mark.parametrize("pp", [1, 2])
def test_whole_bytes_are_those_of_the_plan(pp: int) -> None:
    todo = jobs(pp) + mixtures(pp)
    for results in spawn(counted, 2 * pp, todo, timeout_s=500):
        for each, (stage, most, left) in zip(todo, results, strict=True):
            planned = whole_bytes(each, stage)
            assert most == planned, (each.parallel, each.train, each.model.tied_embeddings, stage)
            assert left == 0
