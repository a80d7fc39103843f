def norm_gradients(tokens, grads, weight, eps, comm):
    """Gradients of this rank's tokens, of the weight and of the bias."""
    h = len(weight)
    x_grads, w_grad, b_grad = [], [0.0] * h, [0.0] * h
    for i, x in enumerate(tokens):
        mean = sum(x) / h
        sigma = (sum((value - mean) ** 2 for value in x) / h + eps) ** 0.5
        hat = [(value - mean) / sigma for value in x]
        g = [grads[i][j] * weight[j] for j in range(h)]
        g_mean, along = sum(g) / h, sum(g[j] * hat[j] for j in range(h)) / h
        x_grads.append([(g[j] - g_mean - hat[j] * along) / sigma for j in range(h)])
        for j in range(h):
            w_grad[j] += grads[i][j] * hat[j]
            b_grad[j] += grads[i][j]
    # From this rank's tokens alone.
    return x_grads, w_grad, b_grad
