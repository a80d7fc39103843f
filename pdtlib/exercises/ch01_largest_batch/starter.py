def largest_micro_batch(model, num_params, capacity_bytes, recompute):
    """The largest number of sequences whose training step fits into capacity_bytes; 0 if none does."""
    h, s = model.hidden, model.seq
    # Only the weights, and one layer without its attention scores. What else lies in memory?
    room = capacity_bytes - 2 * num_params
    return room // (34 * s * h)
