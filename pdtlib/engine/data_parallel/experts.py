"""What data parallelism must know of parameters that not all of its ranks have."""

from dataclasses import dataclass

from pdtlib.engine.mesh import Group


@dataclass(frozen=True)
class Experts:
    """Parameters (by ``id``) of experts, the same on the ranks of ``group`` alone, a part of the replicas.

    An expert has seen the tokens of all ranks of ``shared_by``, which have its neighbours: the sum of its
    gradients over ``group`` is one over all replicas, and is divided by their number.
    """

    group: Group
    params: frozenset[int]
    shared_by: Group
