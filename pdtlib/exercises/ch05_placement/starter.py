def between_nodes(order, sizes, gpus_per_node, sent):
    """Bytes that cross from one node to another in a step, all ranks together."""
    return sum(sent.values())


def best_order(sizes, gpus_per_node, sent):
    """The order of axes, the fastest first, with the least traffic between nodes."""
    # The usual choice. Is it always the best?
    return tuple(sorted(sizes, key=lambda axis: -sent[axis]))
