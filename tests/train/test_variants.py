"""One job, many ways to run it: accumulation, padding, precisions, recomputation, dropout, own data."""

from pathlib import Path

import pytest
import torch
from launching import JOB, spawn, train_on, write_job

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.loss import TokenMean, token_loss_sum
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training.loop import activation_meter, warm_up
from pdtlib.observe.memory import held_bytes, live_tensors, storages
from pdtlib.plan.job import load, loads, replace

pytestmark = pytest.mark.timeout(900)

STEPS = 3


def losses(ranks: int, job: Path, out: Path, *changes: str, **options: object) -> list[float]:
    return [line["loss"] for line in train_on(ranks, job, out, steps=STEPS, changes=changes, **options)]


def test_accumulation_padding_and_recomputation_change_nothing(tmp_path: Path) -> None:
    """On a text so short that its padded last sequence comes up in every epoch."""
    job = write_job(tmp_path)
    text = tmp_path / "short.txt"
    text.write_bytes(bytes(range(32, 127)) * 3)  # 285 bytes: 9 sequences, the last with 28 of 32 targets
    alone = train_on(1, job, tmp_path / "alone", steps=STEPS, data=(text,), changes=("train.micro_batch=8",))
    expected = [line["loss"] for line in alone]
    assert [line["tokens"] for line in alone] == [252, 256, 248]  # the short one comes once, never, twice
    variants = {
        "accumulate": (1, "train.micro_batch=1"),
        "ranks": (4, "train.micro_batch=2", "train.zero_stage=1"),
        "kept": (2, "train.micro_batch=2", "train.zero_stage=3", "train.reshard_after_forward=false"),
        "recompute": (2, "train.micro_batch=2", "train.zero_stage=3", "train.recompute=full"),
        "selective": (2, "train.micro_batch=4", "train.recompute=selective", "train.flash_attention=false"),
    }
    for name, (ranks, *changes) in variants.items():
        found = losses(ranks, job, tmp_path / name, *changes, data=(text,))
        assert found == pytest.approx(expected, abs=1e-5), name


GPT = """
[model]
layers = 2
hidden = 24
heads = 4
vocab = 256
seq = 16
dropout = 0.2
tied_embeddings = true
[train]
global_batch = 8
micro_batch = 2
precision = "fp32"
learning_rate = 1e-3
warmup_steps = 2
"""


def test_dropout_masks_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    job = write_job(tmp_path, GPT)
    expected = losses(1, job, tmp_path / "alone")
    assert losses(2, job, tmp_path / "two", "train.zero_stage=2") == pytest.approx(expected, abs=1e-5)
    assert losses(1, job, tmp_path / "none", "model.dropout=0.0") != pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_stay_near_32(tmp_path: Path, precision: str) -> None:
    """Within the error of 16-bit products (bf16 keeps 8 bits), and alike on every stage."""
    job = write_job(tmp_path)
    expected = losses(1, job, tmp_path / "alone")
    alone = losses(1, job, tmp_path / "16", f"train.precision={precision}")
    assert alone == pytest.approx(expected, rel=4e-3)
    assert alone != expected
    for stage in (1, 3):
        name = f"stage-{stage}"
        changes = (f"train.precision={precision}", f"train.zero_stage={stage}", "train.grad_precision=fp32")
        assert losses(2, job, tmp_path / name, *changes) == pytest.approx(expected, rel=4e-3)


EVEN = ("model.heads=4", "model.kv_heads=2", "model.hidden=32", "model.ffn=52")  # sizes that divide
LAYOUTS = {
    "tp": (2, ("parallel.tp=2", "train.sequence_parallel=true")),
    "pp": (2, ("parallel.pp=2", "parallel.schedule=zb-h1", "train.micro_batch=2")),
    "cp": (2, ("parallel.cp=2",)),
    "tp and pp": (4, ("parallel.tp=2", "parallel.pp=2", "train.micro_batch=2")),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_bf16_stays_near_fp32_in_every_kind_of_layout(tmp_path: Path, name: str) -> None:
    """The full matrix is in float64; sums and messages of 16 bits stay within the error of bf16."""
    job, (ranks, layout) = write_job(tmp_path), LAYOUTS[name]
    expected = losses(1, job, tmp_path / "alone", *EVEN)
    found = losses(ranks, job, tmp_path / "16", *EVEN, "train.precision=bf16", *layout)
    assert found == pytest.approx(expected, rel=4e-3)
    assert found != expected


def test_the_learning_rate_rises_over_warm_up() -> None:
    settings = loads(GPT).train
    rates = [warm_up(settings, step) for step in range(4)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 1e-3])


def audit(stage: int) -> tuple[set[int], int, int]:
    """One step; storages that Python can reach but no report names, and bytes reported and reachable."""
    job = replace(loads(JOB), {"train.zero_stage": stage, "parallel.dp": 2})
    group: Group = build_mesh().group("dp")
    model = Transformer(job.model)
    before = set(storages(live_tensors())) - set(storages(model.parameters()))
    replica = data_parallel(model, group, stage=stage, blocks=list(model.layers))
    optimizer = ShardedAdamW(replica)
    tokens = torch.zeros(1, 32, dtype=torch.long)
    with activation_meter(replica) as meter:
        mean = TokenMean(group, num_valid=32)
        mean.loss(token_loss_sum(replica(tokens), tokens)).backward()
    replica.finish_gradients()
    optimizer.clip_grad_norm(1.0)
    held = {**replica.held(), **optimizer.held()}
    named = [tensor for kind in held.values() for tensor in kind]
    assert meter.held_bytes == 0
    known = before | set(storages(named)) | set(storages([tokens]))
    found = live_tensors()
    unnamed = {size for identity, size in storages(found).items() if identity not in known}
    return unnamed, held_bytes(named), sum(unnamed)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_memory_json_names_every_live_tensor(stage: int) -> None:
    """Nothing of size is alive between steps that memory.json does not count."""
    for unnamed, reported, missed in spawn(audit, 2, stage):
        assert missed < 0.002 * reported, unnamed


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with pytest.raises(Exception, match=r"the gradient norm nan; lower train\.learning_rate"):
        train_on(1, job, tmp_path / "out", steps=20, changes=("train.learning_rate=1e30",))


def test_the_job_in_the_run_directory_is_the_one_that_ran(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    losses(2, job, tmp_path / "out", "train.zero_stage=2")
    found = load(tmp_path / "out" / "job.json")
    assert found.train.zero_stage == 2
    assert found.parallel.dp == 2
