# says: one of them is a list
def all_reduce(comm, data):
    comm.send([data], to=(comm.rank + 1) % comm.world_size)
    yield
