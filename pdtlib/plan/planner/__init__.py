"""The planner: the layouts of a model on a cluster, the best first, those that cannot run with reasons."""

from pdtlib.plan.planner.candidates import candidates
from pdtlib.plan.planner.search import Plan, Ranking, plan, scaling

__all__ = ["Plan", "Ranking", "candidates", "plan", "scaling"]
