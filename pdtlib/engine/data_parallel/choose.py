"""Choose a form of data parallelism by its ZeRO stage."""

from collections.abc import Sequence

import torch
from torch import nn

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.ddp import DDP
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.data_parallel.zero import Zero1, Zero2
from pdtlib.engine.data_parallel.zero3 import Zero3
from pdtlib.engine.mesh import Group
from pdtlib.engine.precision import grad_dtype_of, param_dtype_of
from pdtlib.engine.self_check import check_backend
from pdtlib.plan.flats import BUCKET_BYTES


def data_parallel(
    module: nn.Module,
    group: Group,
    *,
    stage: int = 0,
    blocks: Sequence[nn.Module] | None = None,
    precision: str | None = None,
    grad_precision: str = "same",
    bucket_bytes: int = BUCKET_BYTES,
    reshard_after_forward: bool = True,
    cut: ModelCut | None = None,
) -> Replica:
    """Wrap ``module`` so that ``group``'s ranks train one model, each on its own part of the batch.

    ======  =======================================  ===========================  ============================
    stage   every rank keeps                         gradients are                parameters are
    ======  =======================================  ===========================  ============================
    0       everything (DDP)                         all-reduced, once a step     never sent
    1       its shard of the optimizer's states      reduce-scattered, once       all-gathered after a step
    2       ... and of the gradients                 reduce-scattered, each time  all-gathered after a step
    3       ... and of the parameters                reduce-scattered, each time  gathered block by block
    ======  =======================================  ===========================  ============================

    ``blocks`` (stage 3) are the modules that are gathered one at a time, by default the members of every
    nn.ModuleList; all other parameters form the root, which stays gathered from the start of a forward pass
    to the end of its backward pass. ``precision`` is None (as the module is), fp32, bf16 or fp16; with the
    last two the optimizer keeps fp32 master weights. ``grad_precision`` is same (as the parameters) or fp32.

    ``cut`` is what :func:`pdtlib.engine.tensor_parallel.tensor_parallel` returned for the module, if it was
    called.

    The module's parameters are replaced by views of flat buffers, starting from rank 0's values. Raises
    ValueError for a stage, precision or blocks that do not exist, and RuntimeError when the backend fails
    :func:`pdtlib.engine.self_check.check_backend`.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage!r}: valid are 0, 1, 2, 3")
    dtype, grad_dtype = param_dtype_of(precision), grad_dtype_of(grad_precision)
    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    if group.backend == "nccl" and device.type != "cuda":
        raise ValueError(
            f"module: its parameters are on {device}, and nccl sends from GPUs; use module.to(device)"
        )
    check_backend(group, device=device)
    if stage == 3:
        return Zero3(
            module,
            group,
            blocks=blocks,
            dtype=dtype,
            grad_dtype=grad_dtype,
            cut=cut,
            reshard_after_forward=reshard_after_forward,
        )
    replica = (DDP, Zero1, Zero2)[stage]
    return replica(module, group, dtype=dtype, grad_dtype=grad_dtype, cut=cut, bucket_bytes=bucket_bytes)
