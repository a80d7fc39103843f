def program(kind, stage, stages, micro_batches, chunks):
    """The actions of one stage: a warm-up of forwards, then pairs, then the backwards that are left."""
    v = chunks if kind == "interleaved" else 1

    def place(k):
        """The k-th forward of a stage: rounds of ``stages`` micro-batches, chunk by chunk."""
        this_round, within = divmod(k, stages * v)
        chunk, along = divmod(within, stages)
        return this_round * stages + along, chunk

    def action(op, k):
        micro_batch, chunk = place(k) if v > 1 else (k, 0)
        if op == "B" and v > 1:
            chunk = v - 1 - chunk
        return f"{op}{micro_batch}" + (f"@{chunk}" if chunk else "")

    total = micro_batches * v
    warmup = {
        "gpipe": total,
        "1f1b": stages - 1 - stage,
        "interleaved": 2 * (stages - 1 - stage) + (v - 1) * stages,
    }[kind]
    warmup = min(warmup, total)
    actions = [action("F", k) for k in range(warmup)]
    for k in range(total - warmup):
        actions += [action("F", warmup + k), action("B", k)]
    return actions + [action("B", k) for k in range(total - warmup, total)]
