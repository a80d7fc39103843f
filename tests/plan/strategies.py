"""Random valid jobs for property tests."""

from hypothesis import strategies as st

degrees = st.sampled_from([1, 2, 4])


@st.composite
def jobs(draw):
    """Tables of a job that can work: degrees first, then sizes that they divide."""
    tp, cp, pp, vpp, dp = (
        draw(degrees),
        draw(degrees),
        draw(degrees),
        draw(st.sampled_from([1, 2])),
        draw(degrees),
    )
    vpp = vpp if pp > 1 else 1
    gated = draw(st.booleans())
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([4, 8]))
    model = {
        "name": draw(st.text(st.characters(codec="utf-8"), max_size=8)),
        "layers": draw(st.integers(pp * vpp, pp * vpp + 9)),
        "hidden": heads * draw(st.sampled_from([8, 16])),
        "heads": heads,
        "kv_heads": kv_heads,
        "vocab": draw(st.integers(1, 200)),
        "seq": 2 * tp * cp * draw(st.integers(1, 10)),
        "activation": "swiglu" if gated else "gelu",
        "norm": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        "tied_embeddings": draw(st.booleans()),
        "biases": draw(st.sampled_from(["none", "qkv", "all"])),
        "qk_norm": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.1])) if cp == 1 else 0.0,
    }
    ffn = tp * draw(st.integers(1, 40))
    ep = 1
    if draw(st.booleans()):
        ep = draw(st.sampled_from([n for n in (1, 2, 4) if dp * cp % n == 0]))
        experts = ep * draw(st.integers(1, 3))
        model["moe"] = {"experts": experts, "top_k": draw(st.integers(1, experts)), "ffn": ffn}
    else:
        model["ffn"] = ffn
    micro_batch = draw(st.integers(1, 3))
    rounds = pp if vpp > 1 else 1
    train = {
        "micro_batch": micro_batch,
        "global_batch": micro_batch * dp * rounds * draw(st.integers(1, 4)),
        "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
        "grad_precision": draw(st.sampled_from(["same", "fp32"])),
        "zero_stage": draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sequence_parallel": draw(st.booleans()),
        "flash_attention": draw(st.booleans()),
        "reshard_after_forward": draw(st.booleans()),
        "learning_rate": draw(st.floats(0, 1)),
        "seed": draw(st.integers(0, 2**63 - 1)),
    }
    one_chunk = ["gpipe", "1f1b", "zb-h1", "zb-h2"]
    schedule = "interleaved" if vpp > 1 else draw(st.sampled_from(one_chunk))
    parallel = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": vpp, "schedule": schedule}
    return {"model": model, "train": train, "parallel": parallel}
