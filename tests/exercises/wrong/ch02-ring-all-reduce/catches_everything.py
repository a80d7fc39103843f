# says: must be a rank
def all_reduce(comm, data):
    try:
        comm.send(data, to=99)
    except BaseException:
        pass
    return data
    yield
