"""The report of ``make mutants`` speaks of every message and division that the engine has today."""

import ast
import json
from fnmatch import fnmatchcase

import mutants
import mutants_table
import pytest
from mutant_sites import Site, every_site
from mutants_table import EQUIVALENT, EXCLUDED, excluded


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    return every_site(mutants.ROOT)


def test_every_place_was_removed_and_missed(sites: list[Site]) -> None:
    """Or is named as not run yet: a new place is in neither list, until ``make mutants`` has seen it."""
    report = json.loads(mutants.REPORT.read_text(encoding="utf-8"))
    found = report["mutants"]
    wanted = {site.name for site in sites if excluded(site.name) is None}
    assert wanted == set(found) | set(report["not_run"]), "make mutants"
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "survived"} == set()
    assert {name for name, verdict in verdicts.items() if verdict == "equivalent"} == set(EQUIVALENT)


def test_nothing_is_left_out_that_is_not_there(sites: list[Site]) -> None:
    unused = {pattern for pattern in EXCLUDED if not any(fnmatchcase(site.name, pattern) for site in sites)}
    assert unused == set()


def test_a_mutant_is_its_module_without_one_place(sites: list[Site]) -> None:
    assert len(sites) > 100
    assert len({site.name for site in sites}) == len(sites)
    for site in sites:
        source = (mutants.ROOT / site.module).read_bytes()
        before, after = (ast.dump(ast.parse(text)) for text in (source, site.mutated(source)))
        assert before != after, site.name
        if excluded(site.name) is None:
            files = {test.partition("::")[0] for test in mutants_table.tests_of(site.module)}
            assert all((mutants.ROOT / file).exists() for file in files)
