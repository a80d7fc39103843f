# says: each needs its W
def shortest(stages, micro_batches, cap):
    programs = []
    for s in range(stages):
        warmup = min(stages - 1 - s, micro_batches, cap - 1)
        acts = [f"F{i}" for i in range(warmup)]
        for i in range(micro_batches - warmup):
            acts += [f"F{warmup + i}", f"B{i}"]
        programs.append(acts + [f"B{i}" for i in range(micro_batches - warmup, micro_batches)])
    return programs
