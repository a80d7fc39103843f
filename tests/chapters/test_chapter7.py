"""What chapter 7 says of buckets, plans, published runs and the article's file, against the library."""

import copy
import json
from collections import Counter
from typing import Any

import pytest

from pdtlib.book.claims import published
from pdtlib.book.claims.section7_overlap import visible_s
from pdtlib.plan.comm import ring_steps, sent_bytes
from pdtlib.plan.job import from_dict
from pdtlib.plan.lint import lint_deepspeed
from pdtlib.plan.lint.article import KEYS, as_yaml
from pdtlib.plan.overlap import bucket_timeline, collective_s
from pdtlib.plan.planner import Plan, Ranking, candidates, plan
from pdtlib.plan.planner.search import NOT_NEEDED
from pdtlib.plan.presets import GPUS
from pdtlib.plan.spec import Job
from pdtlib.plan.time.constants import SOFTWARE, USUAL_SOFTWARE
from pdtlib.plan.time.footprint import footprint

GB, MB = 10**9, 10**6


def llama_70b(cluster: str = "dgx-a100") -> Job:
    return from_dict(
        {
            "model": {"preset": "llama2-70b"},
            "train": {"global_batch": 512},
            "hardware": {"cluster": cluster, "n_gpus": 128},
        }
    )


def losses(ranking: Ranking) -> list[tuple[Plan, str]]:
    """The plans behind the best, each with what it loses on."""
    words = [loss.partition(" more ")[2] for loss in ranking.losses()]
    return list(zip(ranking.plans[1:], words, strict=True))


def test_near_the_best_a100s_lose_on_compute_and_h100s_on_messages() -> None:
    ours, later = (plan(llama_70b(cluster), top=6) for cluster in ("dgx-a100", "dgx-h100"))
    best = ours.plans[0].job
    for found, word in losses(ours):
        assert word == "compute"
        finer = found.job.parallel.tp > best.parallel.tp
        assert finer or found.job.train.micro_batch < best.train.micro_batch

    def cut(found: Plan) -> tuple[object, ...]:
        return found.job.parallel, found.job.train

    known = [cut(found) for found in ours.plans]
    same = [word for found, word in losses(later) if cut(found) in known]
    assert len(same) >= 4
    assert all(word.startswith("exposed") for word in same)


def test_314_layouts_fit_and_66_of_them_recompute_without_need() -> None:
    ranking = plan(llama_70b(), top=1)
    capacity = GPUS["A100-SXM4-80"].memory_bytes
    layouts = candidates(llama_70b(), num_gpus=128, rejected=Counter())
    fitting = sum(footprint(layout, software=USUAL_SOFTWARE) <= capacity for layout in layouts)
    assert (fitting, ranking.rejected[NOT_NEEDED], ranking.num_fitting) == (314, 66, 248)


def test_a_pipeline_comes_where_the_network_hides_little() -> None:
    """The model fits without one. The older constants hide part of tensor parallelism's messages."""
    old = SOFTWARE["megatron-2021"]
    assert [old.overlap_tp, old.overlap_dp, old.overlap_pp] == [0, 0, 0]
    assert 0 < old.overlap_tp_back < 1
    assert plan(llama_70b(), top=1).plans[0].job.parallel.pp == 1
    assert plan(llama_70b(), top=1, software=old.name).plans[0].job.parallel.pp > 1


def test_no_run_quoted_has_more_than_megascales_benchmark() -> None:
    shares = {run.name: run.mfu_with_attention for run in published.ON_A100}
    shares |= {run.run: run.mfu for run in published.UTILISATIONS}
    assert max(shares, key=lambda name: shares[name]) == published.MEGASCALE_256.name
    assert plan(llama_70b(), top=1).plans[0].mfu > max(shares.values())
    assert all(run.mfu_with_attention < 0.5 for run in (published.LLAMA_RUN, published.LLAMA2_RUN))


def test_what_is_read_of_the_articles_file() -> None:
    def read(text: str) -> tuple[int, int]:
        keys = [verdict for verdict in lint_deepspeed(text) if verdict.key not in ("", "deepspeed")]
        return sum(verdict.verdict == "ok" for verdict in keys), len(keys)

    assert read(as_yaml()) == (7, 15)
    assert read(json.dumps(KEYS)) == (9, 15)
    left: dict[str, Any] = copy.deepcopy(KEYS)
    del left["tensor_parallel"]["size"]
    found = {verdict.key: verdict for verdict in lint_deepspeed(json.dumps(left))}
    assert "rejected" not in {verdict.verdict for verdict in found.values()}
    assert "fp32" in found[""].message
    for name in ("pipeline_parallel", "pipeline_type", "num_chunks"):
        assert found[name].verdict == "unknown"


def test_what_prefetching_leaves_visible() -> None:
    """Claim C7.3-d: 100 + 7 x 100 + 50 ms, of which 400 ms compute; 800 ms are gathers."""
    assert visible_s(0.05) == pytest.approx(0.05)
    assert visible_s(0.1) == pytest.approx(0.45)
    assert visible_s(0.1) / 0.8 == pytest.approx(0.5625)


@pytest.mark.parametrize(("ranks", "backward_s"), [(64, 2.0), (8, 1.2), (256, 3.0)])
def test_from_the_critical_size_on_only_the_last_bucket_is_exposed(ranks: int, backward_s: float) -> None:
    grads, rate, latency = 14 * GB, 25e9, 10e-6
    spare = backward_s / grads - sent_bytes("all_reduce", 1, ranks) / rate
    critical = ring_steps("all_reduce", ranks) * latency / spare

    def exposed(size: float) -> tuple[float, float]:
        """Exposed seconds, and those of one bucket's message."""
        count = max(1, int(grads / size))  # buckets of at least that size
        line = bucket_timeline(
            [grads // count] * count,
            limit_bytes=grads // count,
            backward_s=backward_s,
            dp=ranks,
            bytes_per_s=rate,
            latency_s=latency,
        )
        one = collective_s("all_reduce", grads // count, ranks, bytes_per_s=rate, latency_s=latency)
        return line.exposed_s, one

    for factor in (1.01, 2, 10):
        waits, one = exposed(factor * critical)
        assert waits == pytest.approx(one, rel=1e-6)
    waits, one = exposed(critical / 2)
    assert waits > 2 * one
