"""Models, GPUs and clusters by name, each with the source of its numbers.

A model preset is a dict of the fields of ``[model]``, written as a job file would write them; ``seq`` is the
sequence length of the (first) pre-training phase and may be changed in the job, like every other field.
"""

from dataclasses import dataclass
from functools import lru_cache

from pdtlib.plan.spec import Model, MoE

ARTICLE_70B_PARAMS = 70_000_000_000
"""The article's "70B" is a round count, not a shape: its memory and FLOPs use exactly this many parameters.

Its activations need a shape, ``article-70b`` below: 80 layers of 8,192 with 64 heads in GPT style, the one
whose activations the article's sources quote. That shape counts 64.7e9 parameters, so never mix the two."""

_GPT: dict[str, object] = {"activation": "gelu", "tied_embeddings": True}
_LLAMA: dict[str, object] = {
    "activation": "swiglu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "biases": "none",
}
_LLAMA3: dict[str, object] = {**_LLAMA, "rope_theta": 500_000.0}
_QWEN: dict[str, object] = {
    "activation": "swiglu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "biases": "qkv",
    "rope_theta": 1_000_000.0,
    "seq": 4096,
}

_QWEN_SMALL: dict[str, object] = {**_QWEN, "vocab": 151936, "tied_embeddings": True, "norm_eps": 1e-6}


def _shape(
    base: dict[str, object], layers: int, hidden: int, heads: int, **rest: object
) -> dict[str, object]:
    return {**base, "layers": layers, "hidden": hidden, "heads": heads, **rest}


MODELS: dict[str, dict[str, object]] = {
    # Radford 2019, "Language models are unsupervised multitask learners", Table 2; released code for dropout.
    "gpt2": _shape(_GPT, 12, 768, 12, vocab=50257, seq=1024, dropout=0.1),
    "gpt2-medium": _shape(_GPT, 24, 1024, 16, vocab=50257, seq=1024, dropout=0.1),
    "gpt2-large": _shape(_GPT, 36, 1280, 20, vocab=50257, seq=1024, dropout=0.1),
    "gpt2-xl": _shape(_GPT, 48, 1600, 25, vocab=50257, seq=1024, dropout=0.1),
    # Brown 2020 (arXiv:2005.14165), Table 2.1.
    "gpt3-175b": _shape(_GPT, 96, 12288, 96, vocab=50257, seq=2048, dropout=0.1),
    # Smith 2022 (arXiv:2201.11990), section 3.1; the vocabulary is Megatron's padded one.
    "mt-nlg-530b": _shape(_GPT, 105, 20480, 128, vocab=51200, seq=2048, dropout=0.1),
    # Touvron 2023 (arXiv:2307.09288), section 2.2, and the released configurations.
    "llama2-7b": _shape(_LLAMA, 32, 4096, 32, ffn=11008, vocab=32000, seq=4096),
    "llama2-13b": _shape(_LLAMA, 40, 5120, 40, ffn=13824, vocab=32000, seq=4096),
    "llama2-70b": _shape(_LLAMA, 80, 8192, 64, kv_heads=8, ffn=28672, vocab=32000, seq=4096),
    # Llama team 2024 (arXiv:2407.21783), Table 3; section 3.2 for the base of the rotary positions.
    "llama3-8b": _shape(_LLAMA3, 32, 4096, 32, kv_heads=8, ffn=14336, vocab=128256, seq=8192),
    "llama3-70b": _shape(_LLAMA3, 80, 8192, 64, kv_heads=8, ffn=28672, vocab=128256, seq=8192),
    "llama3-405b": _shape(_LLAMA3, 126, 16384, 128, kv_heads=8, ffn=53248, vocab=128256, seq=8192),
    # Qwen team 2024 (arXiv:2412.15115), Table 1, and the released configurations.
    "qwen2.5-0.5b": _shape(_QWEN_SMALL, 24, 896, 14, kv_heads=2, ffn=4864),
    "qwen2.5-1.5b": _shape(_QWEN_SMALL, 28, 1536, 12, kv_heads=2, ffn=8960),
    "qwen2.5-3b": _shape(_QWEN_SMALL, 36, 2048, 16, kv_heads=2, ffn=11008),
    "qwen2.5-7b": _shape(_QWEN, 28, 3584, 28, kv_heads=4, ffn=18944, vocab=152064, norm_eps=1e-6),
    "qwen2.5-14b": _shape(_QWEN, 48, 5120, 40, kv_heads=8, ffn=13824, vocab=152064),
    "qwen2.5-32b": _shape(_QWEN, 64, 5120, 40, kv_heads=8, ffn=27648, vocab=152064),
    "qwen2.5-72b": _shape(_QWEN, 80, 8192, 64, kv_heads=8, ffn=29568, vocab=152064),
    # Jiang 2024 (arXiv:2401.04088), Table 1; the released configuration for the rotary base.
    "mixtral-8x7b": _shape(
        {**_LLAMA, "rope_theta": 1_000_000.0},
        32,
        4096,
        32,
        kv_heads=8,
        vocab=32000,
        seq=4096,
        moe={"experts": 8, "top_k": 2, "ffn": 14336},
    ),
    "article-70b": _shape(_GPT, 80, 8192, 64, vocab=32000, seq=4096, dropout=0.1),
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator. Peaks are dense, ``nvlink_bytes_per_s`` is one direction, memory is the printed GB.

    ``matmul_flops`` is the best rate that anyone measured for a bf16 matrix product, where one is known.
    """

    name: str
    peak_flops: float
    peak_fp8_flops: float | None
    matmul_flops: float | None
    memory_bytes: float
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    source: str


_TABLE = "ml-engineering, compute/accelerator tables, revision 744d01e1"
_SHEET = "the vendor's data sheet"


def _gpu(
    name: str,
    tflops: float,
    fp8: float | None,
    best: float | None,
    gb: float,
    tbs: float,
    link: float,
    source: str,
) -> Gpu:
    return Gpu(
        name=name,
        peak_flops=tflops * 1e12,
        peak_fp8_flops=None if fp8 is None else fp8 * 1e12,
        matmul_flops=None if best is None else best * 1e12,
        memory_bytes=gb * 1e9,
        hbm_bytes_per_s=tbs * 1e12,
        nvlink_bytes_per_s=link / 2 * 1e9,
        source=source,
    )


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # dense bf16 and fp8 TFLOP/s, best measured bf16 matmul, memory GB, HBM TB/s, NVLink GB/s (both ways)
        _gpu("V100-SXM2-32", 125, None, None, 32, 0.9, 300, _SHEET + " (fp16: it has no bf16)"),
        _gpu("A100-SXM4-40", 312, None, None, 40, 1.555, 600, _TABLE),
        _gpu("A100-SXM4-80", 312, None, 271.2, 80, 2.039, 600, _TABLE),
        _gpu("A800-SXM", 312, None, None, 80, 2.039, 400, _SHEET),
        _gpu("H100-SXM5", 989.4, 1978.9, 794.5, 80, 3.35, 900, _TABLE),
        _gpu("H100-96GB-HBM2e(Meta)", 989.4, 1978.9, None, 96, 2.4, 900, _TABLE),
        _gpu("H800-SXM", 989.4, 1978.9, None, 80, 3.35, 400, _SHEET),
        _gpu("H20", 148, 296, None, 96, 4.0, 900, _SHEET),
        _gpu("H200", 989.4, 1978.9, 794.5, 141, 4.8, 900, _TABLE),
        _gpu("B200", 2250, 4500, 1745, 180, 8.0, 1800, _TABLE),
        _gpu("GB200", 2500, 5000, 1822, 186, 8.0, 1800, _TABLE),
        _gpu("GB300", 2500, 5000, None, 288, 8.0, 1800, _TABLE),
        _gpu("MI300X", 1307.4, 2614.9, 668.4, 192, 5.3, 896, _TABLE),
    )
}

LINKS: dict[str, float] = {
    # Bytes per second and GPU in one direction, as printed by the vendor: a rate in Gb/s over 8.
    "ethernet-100g": 100e9 / 8,
    "ib-edr-100": 100e9 / 8,
    "ib-edr-50": 50e9 / 8,
    "omnipath-50": 50e9 / 8,
    "ib-hdr-100": 100e9 / 8,
    "ib-hdr-200": 200e9 / 8,
    "roce-200": 200e9 / 8,
    "roce-400": 400e9 / 8,
    "efa-400": 400e9 / 8,
    "ib-ndr-400": 400e9 / 8,
    "ib-xdr-800": 800e9 / 8,
}

INTRA_LINKS: dict[str, float] = {
    # Inside a node: bytes per second and GPU in one direction. NVLink has 6, 12, 18 and 18 links of 25, 25,
    # 25 and 50 GB/s (the vendor's white papers), xGMI 7 of 64; PCIe 16 lanes of 8, 16, 32 GT/s in 128b/130b.
    "nvlink2": 150e9,
    "nvlink3": 300e9,
    "nvlink4": 450e9,
    "nvlink5": 900e9,
    "xgmi3": 448e9,
    "pcie3-x16": 16 * 8e9 * 128 / 130 / 8,
    "pcie4-x16": 16 * 16e9 * 128 / 130 / 8,
    "pcie5-x16": 16 * 32e9 * 128 / 130 / 8,
}

CLUSTERS: dict[str, dict[str, object]] = {
    # A node as its vendor sells it: eight GPUs on NVLink, one network card a GPU (DGX-1: one for two).
    "dgx-1-v100": {"gpu": "V100-SXM2-32", "gpus_per_node": 8, "inter": "ib-edr-50"},
    "dgx-a100": {"gpu": "A100-SXM4-80", "gpus_per_node": 8, "inter": "ib-hdr-200"},
    "dgx-h100": {"gpu": "H100-SXM5", "gpus_per_node": 8, "inter": "ib-ndr-400"},
    "dgx-h200": {"gpu": "H200", "gpus_per_node": 8, "inter": "ib-ndr-400"},
    "dgx-b200": {"gpu": "B200", "gpus_per_node": 8, "inter": "ib-ndr-400"},
    "mi300x-8": {"gpu": "MI300X", "gpus_per_node": 8, "inter": "roce-400"},
}


@lru_cache(maxsize=64)
def model(name: str) -> Model:
    """The model of that name.

    >>> model("llama3-70b").kv_heads
    8
    """
    if name not in MODELS:
        raise ValueError(f"model preset {name!r} is not known; valid: {', '.join(MODELS)}")
    fields = {"name": name, **MODELS[name]}
    moe = fields.pop("moe", None)
    return Model(**fields, moe=MoE(**moe) if isinstance(moe, dict) else None)  # type: ignore[arg-type]
