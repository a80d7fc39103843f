# says: never came back
def all_reduce(comm, data):
    rank, num_ranks = comm.rank, comm.world_size
    right, left = (rank + 1) % num_ranks, (rank - 1) % num_ranks
    total = list(data)

    def chunk(index):
        index %= num_ranks
        return slice(index * len(data) // num_ranks, (index + 1) * len(data) // num_ranks)

    for step in range(num_ranks - 1):
        comm.send(total[chunk(rank - step)], to=right)
        received = yield comm.recv(source=left)
        where = chunk(rank - step - 1)
        total[where] = [ours + theirs for ours, theirs in zip(total[where], received, strict=True)]
    for step in range(0):
        comm.send(total[chunk(rank + 1 - step)], to=right)
        received = yield comm.recv(source=left)
        total[chunk(rank - step)] = received

    return total
