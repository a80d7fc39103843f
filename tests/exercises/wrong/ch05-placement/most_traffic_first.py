# says: is not always the one to put inside a node
from itertools import permutations


def between_nodes(order, sizes, gpus_per_node, sent):
    """Walk over all ranks and axes, and count what goes to another node."""
    world_size = 1
    for size in sizes.values():
        world_size *= size
    total = 0
    for rank in range(world_size):
        stride = 1
        for axis in order:
            here = rank // stride % sizes[axis]
            following = rank + ((here + 1) % sizes[axis] - here) * stride
            if following // gpus_per_node != rank // gpus_per_node:
                total += sent[axis]
            stride *= sizes[axis]
    return total


def best_order(sizes, gpus_per_node, sent):
    """With three axes there are six orders: try them all."""
    return tuple(sorted(sizes, key=lambda axis: -sent[axis] if sizes[axis] > 1 else 0))
