"""The article's section 5: data, tensor and pipeline parallelism together."""

from __future__ import annotations

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict, replace
from pdtlib.plan.ledger import messages
from pdtlib.plan.ranks import ARTICLE_ORDER, MEGATRON_ORDER, coordinates, group_of, groups, nodes_of
from pdtlib.plan.units import GB

REGISTER = Register()
claim = REGISTER.claim

NODE = 8
INNER_STAGE = 3
GPT3 = from_dict(
    {
        "model": {"preset": "gpt3-175b"},
        "train": {"global_batch": 1536, "micro_batch": 1},
        "parallel": {"dp": 16, "tp": 8, "pp": 8},
        "hardware": {"gpu": "A100-SXM4-80", "gpus_per_node": NODE, "n_gpus": 1024},
    }
)
CUBE = GPT3.parallel
NVLINK = presets.GPUS["A100-SXM4-80"].nvlink_bytes_per_s
NETWORK = presets.LINKS["ib-hdr-200"]

MEGATRON = "Narayanan et al. (arXiv:2104.04473)"
MEGATRON_CODE = "Megatron-LM, core/parallel_state.py and training/initialize.py"
DEEPSPEED = "DeepSpeed, runtime/pipe/topology.py"
ZERO_TRAFFIC = "ZeRO (arXiv:1910.02054), section 7"


def sent_gb(axis: str, job: Job = GPT3, stage: int = INNER_STAGE) -> float:
    """GB that one GPU of an inner stage sends along the axis in a step."""
    return sum(m.sent_bytes_per_rank for m in messages(job, stage) if m.axis == axis) / GB


def collectives(axis: str, job: Job = GPT3) -> set[str]:
    """Large messages of an axis, by collective: 1 MB or more in a step."""
    return {
        m.collective for m in messages(job, INNER_STAGE) if m.axis == axis and m.sent_bytes_per_rank > 1e6
    }


def num_groups(axis: str) -> int:
    return len(groups(axis, parallel=CUBE, order=ARTICLE_ORDER))


def group(axis: str, rank: int = 0) -> tuple[int, ...]:
    return group_of(rank, axis, parallel=CUBE, order=ARTICLE_ORDER)


def num_nodes(axis: str, order: tuple[str, ...] = ARTICLE_ORDER) -> int:
    return len(nodes_of(group_of(0, axis, parallel=CUBE, order=order), gpus_per_node=NODE))


def listed(ranks: tuple[int, ...]) -> str:
    return f"{ranks[0]}, {ranks[1]}, …, {ranks[-1]}"


@claim(
    "C5.1-a",
    says="Production-grade training usually uses data, tensor and pipeline parallelism together.",
    registered=IMPRECISE,
    sources=(
        "Llama 3 (arXiv:2407.21783), section 3.3.2",
        "DeepSeek-V3 (arXiv:2412.19437), section 3.2",
        "PaLM",
    ),
)
def _usual() -> Finding:
    return Finding(
        "Common for dense models in Megatron-LM's tradition, and not universal. Llama 3 405B adds context "
        "parallelism and shards its data-parallel states; DeepSeek-V3 has experts, a pipeline and ZeRO-1 "
        "without "
        "tensor parallelism; PaLM had no pipeline; many runs of up to some hundred GPUs use sharded data "
        "parallelism alone."
    )


@claim(
    "C5.1-b",
    says="1,024 GPUs: DP 16, TP 8, PP 8, and 16 × 8 × 8 = 1,024.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _product() -> Finding:
    return Finding(
        f"{CUBE.world_size // NODE} nodes of {NODE}.", [Reading("the product", CUBE.world_size == 1024)]
    )


@claim(
    "C5.1-c",
    says="DP = 16 is the number of data-parallel groups.",
    registered=WRONG,
    sources=(f"{MEGATRON}, section 2.3", "torch, DeviceMesh"),
)
def _number_of_groups() -> Finding:
    counts = {axis: num_groups(axis) for axis in ("dp", "tp", "pp")}
    return Finding(
        f"16 is the degree: the replicas, and so the ranks of one group. There are {counts['dp']} "
        f"data-parallel groups, one for each stage and tensor-parallel rank, {counts['tp']} "
        "tensor-parallel and "
        f"{counts['pp']} pipeline groups.",
        [
            Reading("groups that all-reduce gradients", counts["dp"] == 16),
            Reading("1,024 over the degree", CUBE.world_size // CUBE.dp == 16),
        ],
    )


@claim(
    "C5.1-d",
    says="Node 0 is TP group 0 (GPUs 0–7), node 1 TP group 1 (GPUs 8–15), and so on.",
    registered=EXACT,
    sources=("arithmetic", MEGATRON_CODE),
)
def _one_node_each() -> Finding:
    found = groups("tp", parallel=CUBE, order=ARTICLE_ORDER)
    return Finding(
        f"{len(found)} tensor-parallel groups, each on a node of its own, in either order of ranks.",
        [
            Reading(
                "group k is GPUs 8k to 8k + 7", found == [tuple(range(8 * k, 8 * k + 8)) for k in range(128)]
            ),
            Reading("in Megatron-LM's order as well", num_nodes("tp", MEGATRON_ORDER) == 1),
        ],
    )


@claim(
    "C5.1-e",
    says="Nodes 0–7 are PP group 0, nodes 8–15 PP group 1: 8 nodes form one pipeline.",
    registered=IMPRECISE,
    sources=("arithmetic", MEGATRON_CODE),
)
def _a_replica() -> Finding:
    replica = {rank for mate in group("tp") for rank in group("pp", mate)}
    return Finding(
        f"8 nodes form one replica of the model, {len(replica)} GPUs. In it lie {len(group('tp'))} pipeline "
        f"groups, one for each tensor-parallel rank; that of rank 0 is {listed(group('pp'))}. Its "
        "data-parallel "
        f"group is {listed(group('dp'))}.",
        [
            Reading("a pipeline group, as frameworks count them", len(group("pp")) == 64),
            Reading("a model replica", replica == set(range(64)), usual=False),
        ],
    )


@claim(
    "C5.1-f",
    says="16 pipelines of 8 nodes of 8 GPUs.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _sixteen() -> Finding:
    return Finding(
        "If a pipeline is a replica, as in C5.1-e.", [Reading("the product", CUBE.world_size == 16 * 8 * 8)]
    )


@claim(
    "C5.1-g",
    says="(Implied by the layout.) Pipeline neighbours lie on adjacent nodes; data parallelism is outermost.",
    registered=ASSUMPTION,
    sources=(MEGATRON_CODE, DEEPSPEED),
)
def _layout() -> Finding:
    stage = coordinates(16 * NODE, parallel=CUBE, order=MEGATRON_ORDER)["pp"]
    next_one = {
        order: group_of(0, "pp", parallel=CUBE, order=order)[1] for order in (ARTICLE_ORDER, MEGATRON_ORDER)
    }
    return Finding(
        "A legal order of ranks (tp, pp, dp), but not the default of Megatron-LM (tp, dp, pp; the "
        "article's is "
        "its option --use-tp-pp-dp-mapping) or of DeepSpeed: there node n holds stage n // 16, so node 16 is "
        f"stage {stage}.",
        [
            Reading("the article's order", next_one[ARTICLE_ORDER] == NODE),
            Reading("Megatron-LM's and DeepSpeed's default", next_one[MEGATRON_ORDER] == NODE),
        ],
    )


@claim(
    "C5.2-a",
    says="Tensor parallelism: all-reduce inside a node, NVLink, high bandwidth.",
    registered=EXACT,
    sources=("stas00/ml-engineering, network",),
)
def _tensor() -> Finding:
    return Finding(
        f"An A100's NVLink carries {NVLINK / GB:.0f} GB/s each way, a 200 Gbit/s card {NETWORK / GB:.0f}. "
        "With "
        "sequence parallelism each all-reduce becomes a reduce-scatter and an all-gather.",
        [
            Reading("all-reduces", collectives("tp") == {"all_reduce"}),
            Reading("inside a node", num_nodes("tp") == 1),
        ],
    )


@claim(
    "C5.2-b",
    says="Pipeline parallelism: point to point between nodes, InfiniBand, medium bandwidth.",
    registered=ASSUMPTION,
    sources=(f"{MEGATRON}, section 4.1",),
)
def _pipeline() -> Finding:
    split = replace(GPT3, {"train.sequence_parallel": True})
    packed = replace(GPT3, {"parallel.tp": 2, "parallel.pp": 4, "parallel.dp": 128})
    order = ARTICLE_ORDER
    near = nodes_of(group_of(0, "pp", parallel=packed.parallel, order=order), gpus_per_node=NODE)
    return Finding(
        "With one stage a node, as here. With tp = 2 and pp = 4 a whole pipeline fits into a node. All 8 "
        f"tensor-parallel ranks send the same tensor: {sent_gb('pp'):.1f} GB a step for 175B; with a part "
        "each "
        f"it is {sent_gb('pp', split):.1f} GB.",
        [
            Reading("this layout", collectives("pp") == {"send"} and num_nodes("pp") > 1),
            Reading("layouts in which a pipeline fits into a node", len(near) > 1),
        ],
    )


@claim(
    "C5.2-c",
    says="Data parallelism: all-reduce between nodes, InfiniBand.",
    registered=ASSUMPTION,
    sources=(ZERO_TRAFFIC,),
)
def _data() -> Finding:
    kinds = {stage: collectives("dp", replace(GPT3, {"train.zero_stage": stage})) for stage in (0, 1, 3)}
    return Finding(
        "For plain data parallelism. ZeRO-1 and 2 reduce-scatter gradients and all-gather parameters; "
        "ZeRO-3, "
        "which the article's own table chooses, also gathers them in every forward and backward pass.",
        [
            Reading("plain data parallelism", kinds[0] == {"all_reduce"}),
            Reading("ZeRO-1", kinds[1] == {"all_reduce"}),
            Reading("ZeRO-3", kinds[3] == {"all_reduce"}),
        ],
    )


@claim(
    "C5.2-d",
    says=(
        "The rule: the most frequent traffic, TP, on the fastest links inside a node; DP and PP across nodes."
    ),
    registered=EXACT,
    sources=(f"{MEGATRON}, sections 3.2 and 4.1",),
)
def _rule() -> Finding:
    sent = {axis: sent_gb(axis) for axis in ("tp", "pp", "dp")}
    passes = ("forward", "backward")
    calls = sum(m.count for m in messages(GPT3, INNER_STAGE) if m.axis == "tp" and m.phase in passes)
    fast, slow = sent["tp"] * GB / NVLINK, sent["tp"] * GB / NETWORK
    return Finding(
        f"175B, batch 1,536, for each GPU and step: TP {sent['tp']:.0f} GB in {calls:,} all-reduces, DP "
        f"{sent['dp']:.1f} GB once, PP {sent['pp']:.1f} GB. TP takes {fast:.1f} s over NVLink and would take "
        f"{slow:.1f} s over the network.",
        [
            Reading("most bytes", sent["tp"] > sent["dp"] + sent["pp"]),
            Reading(
                "on the fastest links", num_nodes("tp") == 1 and num_nodes("dp") > 1 and num_nodes("pp") > 1
            ),
        ],
    )
