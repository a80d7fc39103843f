"""Batch arithmetic: global batch = micro-batch x data-parallel degree x accumulation steps.

The degree is the number of replicas, not of processes: ``world_size / (tp x pp x cp)``.
"""


def gradient_accumulation(global_batch: int, *, micro_batch: int, dp: int) -> int:
    """Micro-batches that each replica runs in a step.

    >>> gradient_accumulation(256, micro_batch=4, dp=data_parallel(8, pp=2))
    16
    >>> gradient_accumulation(256, micro_batch=2, dp=7)
    Traceback (most recent call last):
    ValueError: global_batch=256 is not a multiple of micro_batch x dp = 2 x 7 = 14; nearest valid: 252, 266
    """
    unit = micro_batch * dp
    if global_batch % unit:
        near = ", ".join(map(str, nearest_batches(global_batch, micro_batch=micro_batch, dp=dp)))
        raise ValueError(
            f"global_batch={global_batch} is not a multiple of "
            f"micro_batch x dp = {micro_batch} x {dp} = {unit}; nearest valid: {near}"
        )
    return global_batch // unit


def nearest_batches(global_batch: int, *, micro_batch: int, dp: int) -> tuple[int, ...]:
    """The valid global batches just below and just above (only above, if there is none below).

    >>> nearest_batches(256, micro_batch=2, dp=7)
    (252, 266)
    """
    unit = micro_batch * dp
    below = global_batch // unit * unit
    if below == global_batch:
        return (global_batch,)
    return tuple(batch for batch in (below, below + unit) if batch > 0)


def data_parallel(world_size: int, *, tp: int = 1, pp: int = 1, cp: int = 1) -> int:
    """Replicas among ``world_size`` processes.

    >>> data_parallel(8, pp=2)
    4
    """
    group = tp * pp * cp
    if world_size % group:
        raise ValueError(
            f"world_size={world_size} is not a multiple of tp x pp x cp = {tp} x {pp} x {cp} = {group}; "
            f"nearest valid: {', '.join(map(str, nearest_batches(world_size, micro_batch=group, dp=1)))}"
        )
    return world_size // group


def tokens_per_step(global_batch: int, *, seq: int) -> int:
    """Tokens of one optimizer step."""
    return global_batch * seq
