# says: a root that collects
def all_reduce(comm, data):
    others = range(1, comm.world_size)
    if comm.rank:
        comm.send(data, to=0)
        return (yield comm.recv(source=0))
    total = list(data)
    for other in others:
        received = yield comm.recv(source=other)
        total = [a + b for a, b in zip(total, received)]
    for other in others:
        comm.send(total, to=other)
    return total
