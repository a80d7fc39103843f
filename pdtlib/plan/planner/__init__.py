"""The planner: the layouts of a model on a cluster, the best first, those that cannot run with reasons."""

from pdtlib.plan.planner.candidates import candidates
from pdtlib.plan.planner.curves import Point, scaling, sizes_for
from pdtlib.plan.planner.search import Plan, Ranking, plan

__all__ = ["Plan", "Point", "Ranking", "candidates", "plan", "scaling", "sizes_for"]
