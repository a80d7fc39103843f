def saved_terms(batch, seq, hidden, heads, tp, sequence_parallel):
    """Bytes that a rank keeps of one layer, by the tensor's name."""
    block, scores = batch * seq * hidden, batch * heads * seq * seq
    # Everything is divided here. But what is outside the cut regions, without sequence parallelism?
    return {
        "attn_norm input": 2 * block // tp,
        "q, k, v input": 2 * block // tp,
        "softmax output": 2 * scores // tp,
    }
