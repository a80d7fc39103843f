# says: Each axis counts in steps of the product
def coordinates(rank, sizes, order):
    """A rank is a number whose digits are its coordinates, the fastest axis last in writing."""
    place = {}
    for axis in order:
        rank, place[axis] = divmod(rank, sizes[axis])
    return place


def rank_at(place, sizes, order):
    """Each axis counts in steps of the product of all faster ones."""
    rank, stride = 0, 1
    for axis in order:
        stride *= sizes[axis]
        rank += place[axis] * stride
    return rank


def group(rank, axis, sizes, order):
    """All values of one coordinate, the others as they are."""
    place = coordinates(rank, sizes, order)
    return [rank_at({**place, axis: i}, sizes, order) for i in range(sizes[axis])]
