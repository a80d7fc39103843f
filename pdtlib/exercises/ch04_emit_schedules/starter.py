def program(kind, stage, stages, micro_batches, chunks):
    """The actions of one stage, in order."""
    # One micro-batch at a time: legal, but all stages but one wait.
    actions = []
    for i in range(micro_batches):
        actions += [f"F{i}", f"B{i}"]
    return actions
