"""The API reference: every public module has its place on a page, and every public name a docstring."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import pdtlib
from pdtlib.book import api

CHAPTERS = Path(pdtlib.__file__).parents[1] / "chapters"
PAGES = sorted(CHAPTERS.glob("api_*.md"))
ON_THE_COMMAND_LINE = {"pdtlib.cli", "pdtlib.train", "pdtlib.book"}


def named(page):
    return api.MARK.findall(page.read_text(encoding="utf-8"))


def test_every_package_is_on_one_page():
    found = [package for page in PAGES for package in named(page)]
    below = {name for name in api.modules("pdtlib") if name.count(".") == 1}
    assert sorted(found) == sorted(below - ON_THE_COMMAND_LINE)


def test_solutions_of_exercises_are_not_shown():
    shown = list(api.modules("pdtlib.exercises"))
    assert "pdtlib.exercises.compare" in shown
    assert not [name for name in shown if "ch0" in name]
    assert (Path(pdtlib.__file__).parent / "exercises/ch01_param_count").is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_public_name_is_described(page):
    missing, seen = [], 0
    for module in (module for package in named(page) for module in api.modules(package)):
        loaded = import_module(module)
        missing += [] if loaded.__doc__ else [module]
        for name, value in vars(loaded).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module:
                continue
            if inspect.isfunction(value) or inspect.isclass(value):
                seen += 1
                doc = value.__doc__ or ""
                missing += [] if doc and not doc.startswith(f"{name}(") else [f"{module}.{name}"]
    assert missing == []
    assert seen > 50


def test_a_comment_becomes_the_sections_of_its_modules():
    source = ["# API\n\n<!-- api: pdtlib.plan.lint -->\n"]
    api.expand(None, "api_plan", source)
    assert source[0].count(".. automodule:: pdtlib.plan.lint") == len(list(api.modules("pdtlib.plan.lint")))
    assert "## pdtlib.plan.lint.deepspeed\n" in source[0]
