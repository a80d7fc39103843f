"""DeepSpeed's ZeRO, from an environment of its own: .venv-targets, which ``make test-targets`` makes."""

from __future__ import annotations

import logging
import os

import torch
from peers_task import ADAMW, GLOBAL_BATCH, MAX_NORM, Contender, Task, mean_loss, states_of
from torch import Tensor

os.environ.setdefault("DS_ACCELERATOR", "cpu" if not torch.cuda.is_available() else "cuda")


def zero(task: Task) -> Contender:
    """Option ``stage``: 1, 2 or 3. Without ``bucket``-tuning: what its documentation starts from."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    module = task.build()
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW, fused=True)
    local_batch = GLOBAL_BATCH // task.world
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": local_batch,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": task.options["stage"], "overlap_comm": True},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": task.precision == "bf16"},
    }
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    batches = task.batches(rank=task.rank, ranks=task.world)

    def step() -> float:
        ((tokens, targets),) = next(batches)
        loss = mean_loss(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        return float(loss.detach())

    def states() -> list[Tensor]:
        found = [
            value for param in module.parameters() for value in (param.data, param.grad) if value is not None
        ]
        found += [param.ds_tensor.data for param in module.parameters() if hasattr(param, "ds_tensor")]
        outer = engine.optimizer
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            found += list(getattr(outer, name, []))
        for state in outer.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, Tensor) and value.dim() > 0]
        return found

    return Contender(step=step, states=states, close=engine.destroy)


def pipeline(task: Task) -> Contender:
    """DeepSpeed's pipeline, which has one schedule, 1F1B. One micro-batch a sequence."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    last = task.model.layers - 1
    parts = [
        task.build(layers=range(number, number + 1), first=number == 0, last=number == last)
        for number in range(last + 1)
    ]
    deepspeed.init_distributed()
    module = PipelineModule(
        layers=parts, loss_fn=mean_loss, num_stages=task.world, partition_method="uniform"
    )
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW, fused=True)
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": GLOBAL_BATCH,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": task.precision == "bf16"},
    }
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    batches = task.batches(rank=0, ranks=1, micro_batches=GLOBAL_BATCH)

    def step() -> float:
        return float(engine.train_batch(iter(next(batches))))

    return Contender(step=step, states=lambda: states_of(module, optimizer), close=engine.destroy)
