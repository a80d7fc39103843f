def utilisation(run):
    """MFU and HFU. This one divides everything it finds by the largest number it finds."""
    flops = 6 * run["all_weights"] * run["global_batch"] * run["seq"]
    mfu = flops / (run["step_ms"] * run["sparse_tflops"] * 1e12)
    return mfu, mfu
