def critical_bucket(grad_bytes, backward_s, ranks, bytes_per_s, latency_s):
    """The smallest bucket, in bytes, with which the link keeps pace; None if there is none."""
    # Latency alone. But the bytes take time as well.
    return 2 * (ranks - 1) * latency_s / (backward_s / grad_bytes)


def exposed_s(bucket_bytes, grad_bytes, backward_s, ranks, bytes_per_s, latency_s):
    """Seconds that the step waits after the backward pass."""
    raise NotImplementedError
