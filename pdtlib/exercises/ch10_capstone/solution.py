SEQ = 4096


def forecast(brief, layout, mfu):
    """GB of states on a GPU, the bubble's share, and days of training."""
    dp, tp, pp = layout["dp"], layout["tp"], layout["pp"]
    stage = layout["zero_stage"]
    parameter, gradient, optimizer = 2, 2, 12
    if stage >= 1:
        optimizer /= dp
    if stage >= 2:
        gradient /= dp
    if stage >= 3:
        parameter /= dp
    held = brief.num_params / (tp * pp) * (parameter + gradient + optimizer)
    micro_batches = brief.global_batch // (dp * layout["micro_batch"])
    flops_per_s = dp * tp * pp * mfu * brief.peak_flops
    return {
        "state_gb": held / 1e9,
        "bubble": (pp - 1) / (micro_batches + pp - 1),
        "days": 6 * brief.num_params * brief.num_tokens / flops_per_s / 86400,
    }


def write_job(brief, predict):
    """The largest size that the budget pays for, and on it the fastest layout that fits."""
    steps = brief.num_tokens / (brief.global_batch * SEQ)
    for gpus in sorted(brief.sizes, reverse=True):
        job, step_s = fastest(brief, predict, gpus)
        if steps * step_s / 3600 * gpus <= brief.budget_gpu_hours:
            break
    return job


def fastest(brief, predict, gpus):
    """Cut as little as possible; recompute only where nothing fits without."""
    for recompute in ("none", "full"):
        best, best_s = None, float("inf")
        for tp in (1, 2, 4, 8):
            for zero_stage in (2, 3):
                for micro_batch in (1, 2):
                    dp = gpus // tp
                    if brief.global_batch % (dp * micro_batch):
                        continue
                    job = job_of(brief, dp, tp, zero_stage, micro_batch, recompute)
                    found = predict(job)
                    if found["problems"] or found["bytes"] > brief.memory_bytes:
                        continue
                    if found["step_s"] < best_s:
                        best, best_s = job, found["step_s"]
        if best is not None:
            return best, best_s
    return None, float("inf")


def job_of(brief, dp, tp, zero_stage, micro_batch, recompute):
    """The job file, as nested dicts."""
    return {
        "model": {"preset": brief.model},
        "train": {
            "global_batch": brief.global_batch,
            "micro_batch": micro_batch,
            "zero_stage": zero_stage,
            "recompute": recompute,
            "sequence_parallel": tp > 1,
        },
        "parallel": {"dp": dp, "tp": tp, "pp": 1},
        "hardware": {"cluster": brief.cluster, "n_gpus": dp * tp},
    }
