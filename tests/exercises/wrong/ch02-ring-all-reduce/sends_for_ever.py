# says: a loop does not end
def all_reduce(comm, data):
    while True:
        try:
            comm.send(data, to=(comm.rank + 1) % comm.world_size)
            yield comm.recv(source=(comm.rank - 1) % comm.world_size)
        except Exception:
            yield None
