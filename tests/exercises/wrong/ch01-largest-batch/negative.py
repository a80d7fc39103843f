# says: never negative
def largest_micro_batch(model, num_params, capacity_bytes, recompute):
    h, a, s, v = model.hidden, model.heads, model.seq, model.vocab
    whole_layer = 34 * s * h + 5 * a * s * s
    if recompute == "none":
        activations = model.layers * whole_layer
    elif recompute == "selective":
        activations = model.layers * 34 * s * h
    else:
        activations = (model.layers - 1) * 2 * s * h + whole_layer
    per_sequence = activations + 4 * s * v
    room = capacity_bytes - 16 * num_params
    return room // per_sequence
