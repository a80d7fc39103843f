"""Published figures of training runs that the book sets its own beside: inputs, each with its source.

What follows from them (rates, MFU under either convention) is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.plan import flops, params, presets
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class Published:
    """One run: its model, its GPU, and tokens a second and GPU as they follow from what was printed.

    ``printed_mfu`` is what its authors say, where they do and where the book sets its own beside it.
    """

    name: str
    printed: str
    model: Model
    gpu: presets.Gpu
    tokens_per_s: float
    source: str
    printed_mfu: float | None = None

    @property
    def mfu_6nd(self) -> float:
        """MFU by 6 N D, without attention."""
        return self.tokens_per_s * flops.training_flops(self._num_params, num_tokens=1) / self.gpu.peak_flops

    @property
    def mfu_with_attention(self) -> float:
        """MFU with the whole attention square and the logits, as PaLM, Megatron and MegaScale count."""
        return self.tokens_per_s * flops.model_flops_per_token(self.model) / self.gpu.peak_flops

    @property
    def _num_params(self) -> int:
        return params.count(self.model).total


A100 = presets.GPUS["A100-SXM4-80"]

LLAMA_65B = Model(
    name="llama-65b",
    layers=80,
    hidden=8192,
    heads=64,
    ffn=22016,
    vocab=32000,
    seq=2048,
    activation="swiglu",
)
MEGASCALE_175B = Model(
    name="megascale-175b", layers=96, hidden=12288, heads=128, vocab=64000, seq=2048, tied_embeddings=True
)


def _from_step(model: Model, *, batch: int, gpus: int, seconds: float) -> float:
    return batch * model.seq / (gpus * seconds)


LLAMA2_70B_GPU_HOURS, LLAMA2_70B_TOKENS = 1_720_320, 2e12

LLAMA2_RUN = Published(
    "Llama 2 70B, the whole run",
    f"{LLAMA2_70B_GPU_HOURS:,d} GPU-hours for {LLAMA2_70B_TOKENS / 1e12:.0f} trillion tokens",
    presets.model("llama2-70b"),
    A100,
    LLAMA2_70B_TOKENS / (LLAMA2_70B_GPU_HOURS * 3600),
    "Llama 2 (arXiv:2307.09288), table 2",
)
LLAMA_RUN = Published(
    "LLaMA 65B, the whole run",
    "380 tokens a second and GPU",
    LLAMA_65B,
    A100,
    380,
    "LLaMA (arXiv:2302.13971), section 2.4",
)
MEGATRON_530B = Published(
    "Megatron-LM, GPT 530B on 280 GPUs",
    "37.83 s a step of 280 sequences",
    presets.model("mt-nlg-530b"),
    A100,
    _from_step(presets.model("mt-nlg-530b"), batch=280, gpus=280, seconds=37.83),
    "Korthikanti et al. (arXiv:2205.05198), table 5",
)
MEGASCALE_3072 = Published(
    "MegaScale, GPT 175B on 3,072 GPUs",
    "23.66 s a step of 6,144 sequences",
    MEGASCALE_175B,
    A100,
    _from_step(MEGASCALE_175B, batch=6144, gpus=3072, seconds=23.66),
    "MegaScale (arXiv:2402.15627), table 2",
    printed_mfu=0.591,
)
MEGASCALE_256 = Published(
    "MegaScale, GPT 175B on 256 GPUs",
    "32.0 s a step of 768 sequences",
    MEGASCALE_175B,
    A100,
    _from_step(MEGASCALE_175B, batch=768, gpus=256, seconds=32.0),
    "MegaScale (arXiv:2402.15627), table 2",
    printed_mfu=0.653,
)
ON_A100 = (LLAMA2_RUN, LLAMA_RUN, MEGATRON_530B, MEGASCALE_3072, MEGASCALE_256)


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A utilisation as it was printed, with what it needs to be read: GPU, length of sequences.

    ``seq_source`` says where the length stands, where that is elsewhere than the utilisation.
    """

    run: str
    gpu: str
    seq: int
    mfu: float
    hfu: float | None = None
    source: str
    seq_source: str = ""


KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), table 5"
KORTHIKANTI_SEQ = presets.model("mt-nlg-530b").seq  # table 3 there: all four models have the same
LLAMA3 = "Llama 3 (arXiv:2407.21783), table 4"
LLAMA3_SEQ = presets.model("llama3-405b").seq
PALM = "PaLM (arXiv:2204.02311), section 4.1 and table 3"
PALM_SEQ = "PaLM (arXiv:2204.02311), section 5"
UTILISATIONS = (
    Printed(run="GPT 175B", gpu="A100", seq=KORTHIKANTI_SEQ, mfu=0.514, hfu=0.528, source=KORTHIKANTI),
    Printed(run="GPT 530B", gpu="A100", seq=KORTHIKANTI_SEQ, mfu=0.560, hfu=0.570, source=KORTHIKANTI),
    Printed(run="GPT 1T", gpu="A100", seq=KORTHIKANTI_SEQ, mfu=0.563, hfu=0.570, source=KORTHIKANTI),
    Printed(
        run="MegaScale 175B, 12,288 GPUs",
        gpu="A100",
        seq=MEGASCALE_175B.seq,
        mfu=0.552,
        source="arXiv:2402.15627",
    ),
    Printed(run="Llama 3 405B, 8,192 GPUs", gpu="H100", seq=LLAMA3_SEQ, mfu=0.43, source=LLAMA3),
    Printed(run="Llama 3 405B, 16,384 GPUs", gpu="H100", seq=LLAMA3_SEQ, mfu=0.41, source=LLAMA3),
    Printed(run="Llama 3 405B, long sequences", gpu="H100", seq=131072, mfu=0.38, source=LLAMA3),
    Printed(run="PaLM 540B", gpu="TPU v4", seq=2048, mfu=0.462, hfu=0.578, source=PALM, seq_source=PALM_SEQ),
    Printed(
        run="Gopher 280B",
        gpu="TPU v3",
        seq=2048,
        mfu=0.325,
        source=PALM,
        seq_source="Gopher (arXiv:2112.11446)",
    ),
    Printed(
        run="GPT-3 175B",
        gpu="V100",
        seq=presets.model("gpt3-175b").seq,
        mfu=0.213,
        source=PALM,
        seq_source="GPT-3 (arXiv:2005.14165), table 2.1",
    ),
)
"""MFU and HFU in their authors' own conventions."""

LLAMA3_CAUSES = {
    "a faulty GPU": 148,
    "a GPU's memory (HBM3)": 72,
    "software": 54,
    "network switches and cables": 35,
    "maintenance of hosts": 32,
    "a GPU's caches (SRAM)": 19,
    "a GPU's system processor": 17,
    "a timeout without known cause": 7,
    "a network card": 7,
    "silent data corruption": 6,
    "a GPU's temperature or its sensor": 6,
    "disks, power supplies, hosts' memory and processors, other": 16,
}
"""Unexpected interruptions of Llama 3 405B by cause (arXiv:2407.21783, table 5); the small ones together."""

LLAMA3_EFFECTIVE = 0.9
"""More than this share of the time was effective training, arXiv:2407.21783, section 3.3.4."""

TORCHTITAN_8B = Published(
    "torchtitan, Llama 3.1 8B on 8 GPUs",
    "5,762 tokens a second and GPU",
    presets.model("llama3-8b"),
    presets.GPUS["H100-SXM5"],
    5762,
    "torchtitan, benchmarks of December 2024",
)
