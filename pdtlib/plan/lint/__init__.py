"""Linters: a target's own verdict on every key of a configuration, without the target installed."""

from pdtlib.plan.lint.deepspeed import Verdict, lint_deepspeed

__all__ = ["Verdict", "lint_deepspeed"]
