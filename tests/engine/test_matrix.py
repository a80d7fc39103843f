"""A part of the matrix: all pairs of small cases, and some on 8 processes. ``make matrix`` runs all of it."""

import matrix
import matrix_cases
import pytest

pytestmark = pytest.mark.timeout(900)


FOUND = [
    # Cases like those in which the whole matrix has found a fault, and which the part would not run.
    # One micro-batch goes through one direction only; the other's tied embedding was gathered and kept.
    {"model": "odd", "dp": 2, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "zero": "3 kept", "sequence": False,
     "schedule": "dualpipe", "recompute": "none", "micro_batches": 1, "context": "none", "order": "article"},
]  # fmt: skip


@pytest.fixture(scope="module")
def everything() -> list[matrix_cases.Case]:
    return list(matrix_cases.every())


@pytest.fixture(scope="module")
def chosen(everything: list[matrix_cases.Case]) -> list[matrix_cases.Case]:
    return matrix_cases.for_ci(everything, seed=matrix.SEED)


def test_every_pair_is_covered(everything: list[matrix_cases.Case], chosen: list[matrix_cases.Case]) -> None:
    small = [case for case in everything if matrix_cases.is_small(case)]
    pairs = set().union(*map(matrix_cases.pairs_of, small))
    assert pairs <= set().union(*map(matrix_cases.pairs_of, chosen))
    assert sum(matrix_cases.ranks(case) == 8 for case in chosen) == 4
    assert len(chosen) < 0.002 * len(everything)
    assert len(set(map(matrix_cases.name_of, chosen))) == len(chosen), "a name is one case"


def test_chosen_cases_equal_one_process_and_the_plan(chosen: list[matrix_cases.Case]) -> None:
    assert all(map(matrix_cases.valid, FOUND))
    verdicts = matrix.check([*chosen, *FOUND], seconds=600)
    assert {name: found for name, found in verdicts.items() if found != []} == {}
    assert len(verdicts) == len(chosen) + len(FOUND)
