def remaining(order, consumed, global_batch, world_size, rank):
    """Per step that is still to come, the samples that this rank reads."""
    mine = order[rank::world_size]  # the whole data set dealt out at once: does that survive a change?
    each = global_batch // world_size
    done = consumed // world_size
    return [mine[start : start + each] for start in range(done, len(mine), each)]
