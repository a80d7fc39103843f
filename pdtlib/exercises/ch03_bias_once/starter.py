def row_linear(x_part, weight_part, bias, comm):
    """x W + bias for every token, the same on every rank."""
    out = []
    for token in x_part:
        part = [sum(x * weight_part[i][j] for i, x in enumerate(token)) + bias[j] for j in range(len(bias))]
        out.append((yield comm.all_reduce(part)))
    return out


def bias_gradient(grad_y, comm):
    """The gradient of the bias, the same on every rank."""
    part = [sum(grad[j] for grad in grad_y) for j in range(len(grad_y[0]))]
    return (yield comm.all_reduce(part))
