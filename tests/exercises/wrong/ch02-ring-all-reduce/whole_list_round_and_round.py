# says: that grows with N
def all_reduce(comm, data):
    total, passing = list(data), list(data)
    for _ in range(comm.world_size - 1):
        comm.send(passing, to=(comm.rank + 1) % comm.world_size)
        passing = yield comm.recv(source=(comm.rank - 1) % comm.world_size)
        total = [a + b for a, b in zip(total, passing)]
    return total
