"""Every schedule equals one process in float64: losses, norms, and every parameter after three clipped steps.

Pipelines of 2 and 4 ranks and of 2 x 2; models with tied and untied embeddings, dropout, uneven stages, a
user's own list of layers with frozen matrices; fewer micro-batches than stages; every ZeRO stage.
"""

import pytest
from pipeline_zoo import CLIP, TRANSFORMERS, Case, one_process, reference, train

from pdtlib.engine.dist import spawn
from pdtlib.plan.schedule import NAMES

TOLERANCE = 1e-9
MODELS = ("gpt", "llama", "list")
ROUND = (8, 1, 5, 2)  # numbers of micro-batches, taken in turn


def alone(pp: int) -> list[Case]:
    """Every schedule on ``pp`` ranks; models, micro-batches and chunks in turn."""
    found = [
        Case(name, MODELS[(index + pp) % 3], ROUND[(index + pp // 2) % 4], pp)
        for index, name in enumerate(NAMES)
    ]
    return [*found, Case("interleaved", "llama", 5, pp, chunks=1), Case("zb-v", "moe", 2, pp)]


REPLICATED = [
    Case("1f1b", "gpt", 5, 2, dp=2, zero=0),
    Case("1f1b", "list", 2, 2, dp=2, zero=1),
    Case("1f1b", "llama", 2, 2, dp=2, zero=2),
    Case("1f1b", "gpt", 2, 2, dp=2, zero=3),
    Case("interleaved", "gpt", 2, 2, dp=2, zero=1),
    Case("interleaved", "list", 5, 2, dp=2, zero=2),
    Case("interleaved", "llama", 2, 2, dp=2, zero=3, reshard=False),
    Case("zb-h1", "gpt", 2, 2, dp=2, zero=0),
    Case("zb-h2", "list", 5, 2, dp=2, zero=3),
    Case("zb-h1", "llama", 5, 2, dp=2, zero=2),
    Case("zb-v", "gpt", 2, 2, dp=2, zero=1),
    Case("zb-v", "list", 2, 2, dp=2, zero=2),
    Case("zb-v", "gpt", 5, 2, dp=2, zero=3),
    Case("dualpipe", "gpt", 5, 2, dp=2, zero=0),
    Case("dualpipe", "list", 2, 2, dp=2, zero=1),
    Case("dualpipe", "llama", 5, 2, dp=2, zero=2),
    Case("dualpipe", "gpt", 2, 2, dp=2, zero=3),
]
CASES = {2: alone(2), 4: [*alone(4), *REPLICATED]}


def train_all(cases: list[Case], expected: list[dict]) -> list[dict]:
    return [train(*each) for each in zip(cases, expected, strict=True)]


@pytest.fixture(scope="module", params=CASES)
def results(request: pytest.FixtureRequest) -> tuple[list[Case], list[list[dict]]]:
    cases = CASES[request.param]
    expected = [reference(case) for case in cases]
    return cases, spawn(train_all, request.param, cases, expected, timeout_s=280)


def test_equals_one_process(results: tuple[list[Case], list[list[dict]]]) -> None:
    cases, ranks = results
    for case, found in zip(cases, zip(*ranks, strict=True), strict=True):
        expected = reference(case)
        assert max(rank["worst"] for rank in found) < TOLERANCE, case
        losses = [sum(parts) for parts in zip(*(rank["losses"] for rank in found), strict=True)]
        assert losses == pytest.approx(expected["losses"], abs=TOLERANCE), case
        assert set().union(*(rank["names"] for rank in found)) >= set(expected["params"]), case


def test_reference_moves() -> None:
    """Every step changes every parameter that pipelines are compared with, and clipping is active."""
    for model in (*TRANSFORMERS, "list"):
        expected = one_process(model, 5)
        assert expected["moved"] > 1e-3
        assert min(expected["norms"]) > CLIP
