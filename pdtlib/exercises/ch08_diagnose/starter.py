def diagnose(ranks, tp, gpus_per_node, gradient_bytes):
    """Looks at rank 0 alone, and at what it waits for."""
    waits = {}
    for lane, _, start, end in ranks[0]:
        kind, _, axis = lane.partition(" ")
        if kind == "wait":
            waits[axis] = waits.get(axis, 0.0) + end - start
    if waits.get("pp", 0.0) > 0.05:
        return "bubble"
    if waits.get("dp", 0.0) > 0.05:
        return "no overlap"
    return "none"
