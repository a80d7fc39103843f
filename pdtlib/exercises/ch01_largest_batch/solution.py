def largest_micro_batch(model, num_params, capacity_bytes, recompute):
    """What the states leave free, divided by what one sequence needs; all in integers."""
    h, a, s, v = model.hidden, model.heads, model.seq, model.vocab
    whole_layer = 34 * s * h + 5 * a * s * s  # s·h·(34 + 5·a·s/h) for b = 1
    if recompute == "none":
        activations = model.layers * whole_layer
    elif recompute == "selective":
        activations = model.layers * 34 * s * h
    else:
        activations = (model.layers - 1) * 2 * s * h + whole_layer
    per_sequence = activations + 4 * s * v
    room = capacity_bytes - 16 * num_params
    return max(0, room // per_sequence)
