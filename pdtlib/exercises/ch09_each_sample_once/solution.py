def remaining(order, consumed, global_batch, world_size, rank):
    """Per step that is still to come, the samples that this rank reads."""
    steps = []
    for start in range(consumed, len(order), global_batch):
        batch = order[start : start + global_batch]
        steps.append(batch[rank::world_size])
    return steps
