# says: link carries the same load
def all_reduce(comm, data):
    n, r, size = comm.world_size, comm.rank, len(data)
    cut = lambda c: slice(c * size // n, (c + 1) * size // n)
    others = [o for o in range(n) if o != r]
    total = list(data)
    for o in others:
        comm.send(data[cut(o)], to=o)
    for o in others:
        received = yield comm.recv(source=o)
        total[cut(r)] = [a + b for a, b in zip(total[cut(r)], received)]
    for o in others:
        comm.send(total[cut(r)], to=o)
    for o in others:
        total[cut(o)] = yield comm.recv(source=o)
    return total
