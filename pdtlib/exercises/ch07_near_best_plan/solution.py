def choose(num_gpus, gpus_per_node, global_batch, predict):
    """Cut as little as possible first, recompute last, and keep the best that fits."""
    best, best_s, calls = None, float("inf"), 0
    for recompute in ("none", "full"):
        for cut in powers(num_gpus):
            for tp in powers(min(cut, gpus_per_node)):
                pp, dp = cut // tp, num_gpus // cut
                for micro_batch in (1, 2, 4):
                    if global_batch % (micro_batch * dp) or calls == 40:
                        continue
                    layout = {
                        "dp": dp,
                        "tp": tp,
                        "pp": pp,
                        "zero_stage": 3 if pp == 1 and dp > 1 else int(dp > 1),
                        "micro_batch": micro_batch,
                        "recompute": recompute,
                    }
                    calls += 1
                    found = predict(layout)
                    if found is None:
                        continue
                    seconds, held = found
                    if held <= predict.memory_bytes and seconds < best_s:
                        best, best_s = layout, seconds
        if best is not None:
            return best
    return best


def powers(most):
    """1, 2, 4, ... up to ``most``."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found
