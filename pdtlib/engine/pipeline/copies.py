"""Parameters that two ranks of a pipeline hold: their gradients are summed, so both copies stay equal.

The first and the last position share a tied embedding. In a two-way pipeline a rank and its mirror image hold
the same two stages. Either way the copies lie in flat buffers of one layout on both ranks, so that whatever
part of them a rank has under ZeRO, its partner has the same part.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending


def start_sum(buffer: torch.Tensor, group: Group, *, partner: int, phase: str) -> Pending:
    """Replace ``buffer`` on this rank and its partner by the sum of both: an all-reduce of two ranks."""
    group.ledger.record(
        axis=group.axis,
        collective="all_reduce",
        phase=phase,
        message_bytes=buffer.numel() * buffer.element_size(),
        group_size=2,
    )
    received = torch.empty_like(buffer)
    if group.backend == "gloo":  # which has no batches
        works = [group.irecv(received, partner), group.isend(buffer, partner)]
    else:
        process_group, peer = group.process_group, group.ranks[partner]
        operations = [
            dist.P2POp(dist.irecv, received, peer, process_group),
            dist.P2POp(dist.isend, buffer, peer, process_group),
        ]
        works = dist.batch_isend_irecv(operations)
    return Pending(group, f"{phase} all_reduce", works).then(lambda: buffer.add_(received))


def take_over(tensors: Sequence[torch.Tensor], group: Group, *, partner: int, mine: bool) -> None:
    """Give the partner this rank's values of ``tensors``, or take the partner's, before training begins."""
    for tensor in tensors:
        copy = tensor.detach().contiguous()
        message = group.isend if mine else group.irecv
        Pending(group, "init", [message(copy, partner)]).wait()
        if mine:
            group.ledger.record(
                axis=group.axis,
                collective="send",
                phase="init",
                message_bytes=copy.numel() * copy.element_size(),
                group_size=2,
            )
        else:
            tensor.detach().copy_(copy)
