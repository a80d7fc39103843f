def exposed(communication, compute):
    """The difference of the sums. Right only if nothing overlaps but each message with its own kernel."""
    sent = sum(end - start for start, end in communication)
    computed = sum(end - start for start, end in compute)
    return max(0, sent - computed)
