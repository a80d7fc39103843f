def utilisation(run):
    """Model FLOPs and executed FLOPs of a step, each over what all GPUs could do in its time."""
    attention = 4 * run["layers"] * run["seq"] * run["width"]
    forward = 2 * run["weights"] + attention
    again = 0
    if run["recompute"] == "selective":
        again = attention
    if run["recompute"] == "full":
        again = 2 * (run["weights"] - run["head_weights"]) + attention
    tokens = run["global_batch"] * run["seq"]
    seconds = run["step_ms"] / 1e3
    capacity = run["gpus"] * seconds * run["peak_tflops"] * 1e12
    return 3 * forward * tokens / capacity, (3 * forward + again) * tokens / capacity
