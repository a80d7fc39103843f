"""What PyTorch offers: one process, DDP, ZeroRedundancyOptimizer, FSDP 1 and 2, DTensor's parallelism."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from peers_task import ADAMW, MAX_NORM, Contender, Task, mean_loss, states_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from pdtlib.engine.models import Layer

warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", category=UserWarning)


def adamw(module: nn.Module) -> torch.optim.AdamW:
    """torch's fastest AdamW, which wants DTensors and plain parameters in groups of their own."""
    groups = [{"params": list(params)} for params in by_kind(module) if params]
    return torch.optim.AdamW(groups, **ADAMW, fused=True)


def clip(module: nn.Module) -> None:
    """Clip by the norm over all parameters."""
    clip_all(module, stages=None)


def clip_all(module: nn.Module, *, stages: dist.ProcessGroup | None) -> None:
    """Clip by the norm over the parameters of all ``stages``, which torch leaves to a pipeline's user.

    Of DTensors torch sums the shards itself; gradients that a stage does not have are left out.
    """
    kinds = [[p for p in params if p.grad is not None] for params in by_kind(module)]
    norms = [
        torch.nn.utils.get_total_norm([p.grad for p in params], foreach=True) for params in kinds if params
    ]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.stack(whole).norm()
    if stages is not None:
        square = total.square()
        dist.all_reduce(square, group=stages)
        total = square.sqrt()
    for params in kinds:
        torch.nn.utils.clip_grads_with_norm_(params, MAX_NORM, total, foreach=True)


def by_kind(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The module's DTensor parameters, and its plain ones."""
    sharded = [param for param in module.parameters() if isinstance(param, DTensor)]
    plain = [param for param in module.parameters() if not isinstance(param, DTensor)]
    return sharded, plain


def _data_parallel(
    task: Task, module: nn.Module, optimizer: torch.optim.Optimizer, clip_norm=clip
) -> Contender:
    batches = task.batches(rank=task.rank, ranks=task.world)

    def step() -> float:
        ((tokens, targets),) = next(batches)
        optimizer.zero_grad(set_to_none=not task.options.get("keep", False))
        loss = mean_loss(module(tokens), targets)
        loss.backward()
        clip_norm(module)
        optimizer.step()
        return float(loss.detach())

    return Contender(step=step, states=lambda: states_of(module, optimizer))


def one(task: Task) -> Contender:
    """One process does all the work: the floor that ratios refer to."""
    module = task.build()
    if task.precision == "bf16":
        module = module.to(torch.bfloat16)
    return _data_parallel(task, module, adamw(module))


def ddp(task: Task) -> Contender:
    """DistributedDataParallel; options: ``gradient_as_bucket_view``, ``static_graph``, ``keep`` gradients."""
    names = ("gradient_as_bucket_view", "static_graph")
    module = DistributedDataParallel(task.build(), **{name: task.options.get(name, False) for name in names})
    return _data_parallel(task, module, adamw(module))


def zero_redundancy(task: Task) -> Contender:
    """ZeRO-1 as torch has it: DDP with ZeroRedundancyOptimizer."""
    module = DistributedDataParallel(task.build(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        module.parameters(), optimizer_class=torch.optim.AdamW, **ADAMW, fused=True
    )
    contender = _data_parallel(task, module, optimizer)
    contender.states = lambda: states_of(module, optimizer.optim)[:]
    return contender


def fsdp1(task: Task) -> Contender:
    """FullyShardedDataParallel; option ``strategy``: SHARD_GRAD_OP (ZeRO-2) or FULL_SHARD (ZeRO-3)."""
    mixed = None
    if task.precision == "bf16":
        mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    module = FullyShardedDataParallel(
        task.build(),
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        sharding_strategy=ShardingStrategy[task.options["strategy"]],
        mixed_precision=mixed,
        device_id=task.device if task.device.type == "cuda" else torch.device("cpu"),
    )
    return _data_parallel(task, module, adamw(module), lambda model: model.clip_grad_norm_(MAX_NORM))


def fsdp2(task: Task) -> Contender:
    """fully_shard on every layer and the root; option ``reshard``: False keeps what was gathered (ZeRO-2)."""
    module = task.build()
    shard(module, task, mesh=None)
    return _data_parallel(task, module, adamw(module))


def shard(module: nn.Module, task: Task, *, mesh: DeviceMesh | None) -> None:
    """Apply fully_shard as torchtitan does: each layer, then what is left."""
    policy = MixedPrecisionPolicy()
    if task.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    keep = {"reshard_after_forward": task.options["reshard"], "mp_policy": policy, "mesh": mesh}
    for layer in module.layers:
        fully_shard(layer, **keep)
    fully_shard(module, **keep)


def dtensor_tp(task: Task) -> Contender:
    """DTensor tensor parallelism; options: ``sequence`` parallelism, ``loss_parallel`` (by default yes)."""
    mesh = init_device_mesh(task.device.type, (task.world,), mesh_dim_names=("tp",))
    module = task.build()
    parallel_loss = task.options.get("loss_parallel", True)
    cut(module, mesh, sequence=task.options["sequence"], parallel_loss=parallel_loss)
    return _with_loss_parallel(task, module, rank=0, ranks=1)


def cut(module: nn.Module, mesh: DeviceMesh, *, sequence: bool, parallel_loss: bool = True) -> None:
    """torchtitan's plan for a Llama, on the names of our model or of a part of it."""
    if module.head is not None:
        head = module.head
        module.output = lambda x, weight: head(x)  # through the module, so that its hooks run
    if sequence:
        module.sequence_parts = mesh.size()
    residual = Shard(1) if sequence else Replicate()
    plan: dict = {}
    for name, _ in module.named_modules():
        last = name.rpartition(".")[2]
        if last in ("q", "k", "v", "gate", "up"):
            plan[name] = ColwiseParallel()
        elif last in ("o", "down"):
            plan[name] = RowwiseParallel(output_layouts=residual)
        elif sequence and last in ("attn_norm", "mlp_norm", "norm"):
            plan[name] = SequenceParallel()
        elif sequence and last == "attn":
            plan[name] = PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            )
        elif sequence and last == "mlp":
            plan[name] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    if module.embed is not None:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
    if module.head is not None:
        logits = (
            {"output_layouts": Shard(-1), "use_local_output": False}
            if parallel_loss
            else {"output_layouts": Replicate()}
        )
        plan["head"] = ColwiseParallel(input_layouts=residual, **logits)
    parallelize_module(module, mesh, plan)


def fsdp2_tp(task: Task) -> Contender:
    """FSDP2 over DTensor tensor parallelism with sequence parallelism, as torchtitan composes them."""
    tp = task.options["tp"]
    mesh = init_device_mesh(task.device.type, (task.world // tp, tp), mesh_dim_names=("dp", "tp"))
    module = task.build()
    cut(module, mesh["tp"], sequence=True)
    shard(module, task, mesh=mesh["dp"])
    return _with_loss_parallel(task, module, rank=mesh["dp"].get_local_rank(), ranks=task.world // tp)


def _with_loss_parallel(task: Task, module: nn.Module, *, rank: int, ranks: int) -> Contender:
    """A module whose logits are cut by words, as data-parallel rank ``rank`` of ``ranks``."""
    optimizer = adamw(module)
    batches = task.batches(rank=rank, ranks=ranks)

    def step() -> float:
        ((tokens, targets),) = next(batches)
        optimizer.zero_grad()
        with loss_parallel():
            loss = mean_loss(module(tokens), targets)
            loss.backward()
        clip(module)
        optimizer.step()
        return float(loss.full_tensor() if isinstance(loss, DTensor) else loss.detach())

    return Contender(step=step, states=lambda: states_of(module, optimizer))
