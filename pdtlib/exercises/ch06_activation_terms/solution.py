def saved_terms(batch, seq, hidden, heads, tp, sequence_parallel):
    """Bytes that a rank keeps of one layer, by the tensor's name."""
    block, scores = batch * seq * hidden, batch * heads * seq * seq
    inner = 4 * block
    outside = tp if sequence_parallel else 1
    return {
        "attn_norm input": 2 * block // outside,
        "q, k, v input": 2 * block // outside,
        "q": 2 * block // tp,
        "k": 2 * block // tp,
        "v": 2 * block // tp,
        "softmax output": 2 * scores // tp,
        "softmax dropout mask": scores // tp,
        "softmax dropout output": 2 * scores // tp,
        "o input": 2 * block // tp,
        "attention dropout mask": block // outside,
        "mlp_norm input": 2 * block // outside,
        "mlp input": 2 * block // outside,
        "gelu input": 2 * inner // tp,
        "down input": 2 * inner // tp,
        "mlp dropout mask": block // outside,
    }
