def critical_bucket(grad_bytes, backward_s, ranks, bytes_per_s, latency_s):
    """The smallest bucket, in bytes, with which the link keeps pace; None if there is none."""
    if ranks == 1:
        return 0.0
    made_s = backward_s / grad_bytes  # to make a byte of gradients
    sent_s = 2 * (ranks - 1) / ranks / bytes_per_s  # to send it round
    if made_s <= sent_s:
        return None
    return 2 * (ranks - 1) * latency_s / (made_s - sent_s)


def exposed_s(bucket_bytes, grad_bytes, backward_s, ranks, bytes_per_s, latency_s):
    """Seconds that the step waits after the backward pass."""
    if ranks == 1:
        return 0.0
    count = round(grad_bytes / bucket_bytes)
    made = backward_s / count
    cost = 2 * (ranks - 1) * (latency_s + bucket_bytes / ranks / bytes_per_s)
    link_free = 0.0
    for bucket in range(count):
        link_free = max(link_free, (bucket + 1) * made) + cost
    return link_free - backward_s
