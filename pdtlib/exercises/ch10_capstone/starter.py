def forecast(brief, layout, mfu):
    """GB of states on a GPU, bubble, days."""
    return {"state_gb": 0.0, "bubble": 0.0, "days": 0.0}


def write_job(brief, predict):
    """The job soonest done within the budget."""
    # The smallest cluster, all sharded and recomputed.
    gpus = min(brief.sizes)
    return {
        "model": {"preset": brief.model},
        "train": {
            "global_batch": brief.global_batch,
            "micro_batch": 1,
            "zero_stage": 3,
            "recompute": "full",
            "sequence_parallel": False,
        },
        "parallel": {"dp": gpus, "tp": 1, "pp": 1},
        "hardware": {"cluster": brief.cluster, "n_gpus": gpus},
    }
