"""The examples in plan's docstrings are tests."""

import doctest
import importlib
import pkgutil

import pytest

import pdtlib.plan

MODULES = sorted(info.name for info in pkgutil.walk_packages(pdtlib.plan.__path__, "pdtlib.plan."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
