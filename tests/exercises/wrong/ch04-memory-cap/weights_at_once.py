# says: Each W runs right after its B
def shortest(stages, micro_batches, cap):
    done = [(0, 0, 0)] * stages
    programs = [[] for _ in range(stages)]
    while any(counts != (micro_batches,) * 3 for counts in done):
        after = list(done)
        for s, (f, b, w) in enumerate(done):
            can = {}
            if b < (f if s == stages - 1 else done[s + 1][1]):
                can["B"] = (f, b + 1, w)
            if f < (micro_batches if s == 0 else done[s - 1][0]) and f - w < cap:
                can["F"] = (f + 1, b, w)
            if w < b:
                can["W"] = (f, b, w + 1)
            op = next((op for op in "WBF" if op in can), None)
            if op:
                programs[s].append(f"{op}{dict(F=f, B=b, W=w)[op]}")
                after[s] = can[op]
        done = after
    return programs
