# says: Only those to a rank on another node count
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
            if following != rank:
                total += sent[axis]
            stride *= sizes[axis]
    return total


def best_order(sizes, gpus_per_node, sent):
    """With three axes there are six orders: try them all."""
    return min(permutations(sizes), key=lambda order: between_nodes(order, sizes, gpus_per_node, sent))
