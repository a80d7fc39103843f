# says: Every message costs a latency
def all_reduce(comm, data):
    n, r = comm.world_size, comm.rank
    total = list(data)
    for phase in range(2):
        for step in range(n - 1):
            out, into = (r - step + phase) % n, (r - step - 1 + phase) % n
            for i in range(out * len(data) // n, (out + 1) * len(data) // n):
                comm.send([total[i]], to=(r + 1) % n)
            for i in range(into * len(data) // n, (into + 1) * len(data) // n):
                value = (yield comm.recv(source=(r - 1) % n))[0]
                total[i] = value if phase else total[i] + value
    return total
