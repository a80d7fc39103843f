WORTH = 0.05


def diagnose(ranks, tp, gpus_per_node, gradient_bytes):
    """From the sign that only one fault has to those that several share."""

    def share(rank, wanted):
        spans = ranks[rank]
        whole = sum(end - start for lane, _, start, end in spans if lane == "step")
        return sum(end - start for lane, _, start, end in spans if lane == wanted) / whole

    if max(share(rank, "wait pp") for rank in ranks) > WORTH:
        return "bubble"
    if max(share(rank, "data") for rank in ranks) > WORTH:
        return "data stall"
    if tp > gpus_per_node and max(share(rank, "wait tp") for rank in ranks) > WORTH:
        return "TP across nodes"
    work = sorted(share(rank, "compute") for rank in ranks)
    if work[-1] > 1.2 * work[(len(work) - 1) // 2]:
        return "straggler"
    if min(share(rank, "wait dp") for rank in ranks) > WORTH:  # even who waits least
        mean = sum(gradient_bytes) / len(gradient_bytes)
        if len(gradient_bytes) >= 8 and mean < 2**18:
            return "tiny buckets"
        return "no overlap"
    return "none"
