# says: Too few bytes
board = []
def all_reduce(comm, data):
    board.append(data)
    if False:
        yield
    return [sum(column) for column in zip(*board)]
