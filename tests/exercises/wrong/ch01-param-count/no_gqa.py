# says: kv_heads
def param_count(model):
    h = model.hidden
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    num_inner = 2 if model.activation == "swiglu" else 1
    norm = 2 * h if model.norm == "layernorm" else h

    block = 2 * norm
    block += h * q + 2 * h * q + q * h
    block += num_inner * h * model.ffn + model.ffn * h
    if model.biases in ("qkv", "all"):
        block += q + 2 * kv
    if model.biases == "all":
        block += h + num_inner * model.ffn + h

    total = model.vocab * h + model.layers * block + norm
    if model.positions == "learned":
        total += model.seq * h
    if not model.tied_embeddings:
        total += model.vocab * h
    return total
