"""Model states: what parameters, gradients and the optimizer weigh, and what ZeRO leaves of it on one rank.

The field counts bytes per parameter in several ways; :data:`ACCOUNTINGS` names them. Shares here are exact
fractions, as in the papers; what our engine holds, with its padding, is in :mod:`pdtlib.plan.held`.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Accounting:
    """Bytes per parameter: the working copy, its gradient, and all that the optimizer keeps."""

    name: str
    params: int
    grads: int
    optimizer: int
    meaning: str
    source: str

    @property
    def total(self) -> int:
        return self.params + self.grads + self.optimizer


ACCOUNTINGS: dict[str, Accounting] = {
    item.name: item
    for item in (
        Accounting(
            "no-master-12",
            2,
            2,
            8,
            "16-bit weights and gradients, fp32 moments, no fp32 master copy: the article's count",
            "arithmetic: 2 + 2 + 8",
        ),
        Accounting(
            "zero-16",
            2,
            2,
            12,
            "16-bit weights and gradients; fp32 master copy and two moments",
            "Rajbhandari 2020 (arXiv:1910.02054), section 3.1",
        ),
        Accounting(
            "megatron-18",
            2,
            4,
            12,
            "bf16 weights, fp32 gradients; fp32 master copy and two moments",
            "Megatron-LM, distributed optimizer guide: bf16 parameters, fp32 gradients",
        ),
        Accounting(
            "megatron-fp16-20",
            2,
            2,
            16,
            "fp16 weights and gradients; fp32 copies of both and two moments",
            "Megatron-LM, distributed optimizer guide: fp16 parameters, fp16 gradients",
        ),
        Accounting(
            "fp32-16",
            4,
            4,
            8,
            "everything in fp32; the weights are their own master copy",
            "Megatron-LM, distributed optimizer guide: fp32 parameters, fp32 gradients",
        ),
    )
}

ZERO = ACCOUNTINGS["zero-16"]


def engine_accounting(precision: str, grad_precision: str = "same") -> Accounting:
    """What our engine holds. ``precision`` fp8 changes matrix products, not what is stored: bf16.

    >>> engine_accounting("bf16").total, engine_accounting("bf16", "fp32").total
    (16, 18)
    """
    source = "pdtlib.engine"
    if precision == "fp32":
        return Accounting("engine-fp32", 4, 4, 8, "fp32 weights, gradients and moments", source)
    grads = 4 if grad_precision == "fp32" else 2
    meaning = f"{precision} weights, {'fp32' if grads == 4 else precision} gradients, fp32 master and moments"
    return Accounting(f"engine-{precision}", 2, grads, 12, meaning, source)


def optimizer_traffic(accounting: Accounting) -> int:
    """Bytes per parameter that a step of AdamW moves: states and gradients read and written (the norm reads
    the gradient too), the working copy written.

    >>> optimizer_traffic(engine_accounting("bf16"))
    30
    """
    return 2 * accounting.optimizer + 2 * accounting.grads + accounting.params


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model states on one rank."""

    params: float
    grads: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.params + self.grads + self.optimizer


def check_stage(stage: int) -> None:
    """Raise ``ValueError`` unless ``stage`` is a ZeRO stage; 0 is plain data parallelism."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage}; valid: 0 (data parallelism), 1, 2, 3")


def zero_state_bytes(num_params: float, *, dp: int, stage: int, accounting: Accounting = ZERO) -> StateBytes:
    """Mixed-precision Adam on ``dp`` ranks: (2 + 2 + 12) bytes per parameter, less what ZeRO shards.

    Stage 1 shards the optimizer's state, stage 2 also gradients, stage 3 also parameters (Rajbhandari 2020,
    Figure 1). Raises ``ValueError`` for a stage outside 0 to 3 or no rank.

    >>> round(zero_state_bytes(7.5e9, dp=64, stage=1).total / 1e9, 1)
    31.4
    >>> [round(zero_state_bytes(70e9, dp=8, stage=stage).total / 1e9, 1) for stage in range(4)]
    [1120.0, 385.0, 262.5, 140.0]
    """
    check_stage(stage)
    if dp < 1:
        raise ValueError(f"dp={dp}; valid: 1 or more ranks")
    return StateBytes(
        params=num_params * accounting.params / (dp if stage >= 3 else 1),
        grads=num_params * accounting.grads / (dp if stage >= 2 else 1),
        optimizer=num_params * accounting.optimizer / (dp if stage >= 1 else 1),
    )


def whole_and_sharded(accounting: Accounting, stage: int) -> tuple[int, int]:
    """Bytes per parameter that every rank keeps whole, and those that are shared out.

    >>> whole_and_sharded(ZERO, 2)
    (2, 14)
    """
    check_stage(stage)
    parts = (accounting.optimizer, accounting.grads, accounting.params)
    return sum(parts[stage:]), sum(parts[:stage])


def fits_from(
    num_params: float, *, capacity_bytes: float, stage: int, accounting: Accounting = ZERO
) -> int | None:
    """The smallest number of ranks on which the states fit into ``capacity_bytes`` each; None if none does.

    >>> [fits_from(70e9, capacity_bytes=80e9, stage=stage) for stage in range(4)]
    [None, None, None, 14]
    """
    whole, sharded = whole_and_sharded(accounting, stage)
    room = capacity_bytes - num_params * whole
    if room < 0 or (room == 0 and sharded):
        return None
    return max(1, math.ceil(num_params * sharded / room)) if sharded else 1


def largest_model(
    capacity_bytes: float, *, dp: int | None, stage: int, accounting: Accounting = ZERO
) -> float:
    """Parameters whose states just fill ``capacity_bytes`` on each of ``dp`` ranks; None is any number.

    Infinite where nothing stays whole and ranks are without limit.

    >>> round(largest_model(80e9, dp=8, stage=1) / 1e9, 1), largest_model(80e9, dp=None, stage=1) / 1e9
    (14.5, 20.0)
    """
    whole, sharded = whole_and_sharded(accounting, stage)
    each = whole + (sharded / dp if dp is not None else 0)
    return capacity_bytes / each if each else math.inf
