"""Everything that a rank sends in one step, axis by axis: the communication ledger of a job.

Volumes of one micro-batch of b sequences of s positions, of which a rank has s / cp:

* **tp**, without sequence parallelism: two all-reduces of ``b s h`` a layer forwards and two backwards
  (Shoeybi 2019, section 3); one or two more where the layer is recomputed. With it each all-reduce is an
  all-gather and a reduce-scatter, and the inputs of the first products are gathered once more for their
  weights' gradients (Korthikanti 2022, section 4.2.2). Recomputing a layer stops at the last tensor that its
  backward pass needs: without dropout that is the input of the last product, whose sum is not sent again.
* **cp**: ring attention passes each rank's keys and values round (Liu 2023, arXiv:2310.01889), and their
  gradients on the way back; Ulysses exchanges heads for positions with four all-to-alls (Jacobs 2023,
  arXiv:2309.14509).
* **pp**: a stage sends its output on, and its input's gradient back; every chunk does when interleaved.
* **ep**: two all-to-alls of ``top_k b s h`` a layer each way, to the experts and back.
* **dp**: :func:`pdtlib.plan.flats.data_parallel_messages`.
"""

from collections.abc import Iterator

from pdtlib.plan.chunks import chunk_runs, has_first, has_last, layout_of
from pdtlib.plan.comm import Message
from pdtlib.plan.flats import TINY_BYTES, data_parallel_messages, flats, gradient_bytes
from pdtlib.plan.params import TensorSpec
from pdtlib.plan.placement import is_expert, is_repeated_head
from pdtlib.plan.spec import Job
from pdtlib.plan.states import engine_accounting


def messages(job: Job, stage: int = 0, data_rank: int = 0) -> tuple[Message, ...]:
    """The ledger of a rank of this pipeline stage; axes on which the job has one rank send nothing.

    Which tensors lie in a rank's shard, and so what of them it sends over tp, depends on ``data_rank``, its
    number among the dp x cp ranks that share them.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "article-70b"}, "parallel": {"tp": 8}}
    >>> rows = [row for row in messages(from_dict(tables)) if row.phase in ("forward", "backward")]
    >>> rows[0].message_bytes, round(sum(row.sent_bytes_per_rank for row in rows) / 1e9, 1)
    (67108864.0, 37.8)
    """
    found = (
        *data_parallel_messages(job, stage),
        *_tensor(job, stage),
        *_tensor_gradients(job, stage, data_rank),
        *_context(job, stage),
        *_pipeline(job, stage),
        *_expert(job, stage),
    )
    return tuple(message for message in found if message.group_size > 1 and message.count)


def element_bytes(job: Job) -> int:
    """Bytes of an element of what travels between layers."""
    return 4 if job.train.precision == "fp32" else 2


def block_bytes(job: Job) -> float:
    """Bytes of one micro-batch between two layers, ``b s h``, on a rank's share of positions."""
    tokens = job.train.micro_batch * job.model.seq / job.parallel.cp
    return tokens * job.model.hidden * element_bytes(job)


def _layer_calls(job: Job, stage: int) -> int:
    """Forward passes of single layers in a step."""
    return sum(len(chunk.layers) * times for chunk, times in chunk_runs(job, stage))


def _recomputed_calls(job: Job, stage: int) -> int:
    """Those of them that are run again for the backward pass, whole or in part."""
    return sum(chunk.recomputed * times for chunk, times in chunk_runs(job, stage))


def _tensor(job: Job, stage: int) -> Iterator[Message]:
    parallel, train, tp = job.parallel, job.train, job.parallel.tp
    block, layers, runs = block_bytes(job), _layer_calls(job, stage), chunk_runs(job, stage)
    first = sum(times for chunk, times in runs if chunk.first)
    last = sum(times for chunk, times in runs if chunk.last)
    again = _recomputed_calls(job, stage) if train.recompute == "full" else 0
    ends = again * (2 if job.model.dropout > 0 else 1)
    if train.sequence_parallel:
        yield Message("tp", "all_gather", "forward", 2 * layers + last, block, tp)
        yield Message("tp", "reduce_scatter", "forward", 2 * layers + first, block, tp)
        yield Message("tp", "all_gather", "recompute", 2 * again, block, tp)
        yield Message("tp", "reduce_scatter", "recompute", ends, block, tp)
        kept = layers if job.model.moe is not None else 0  # experts keep their gathered input
        yield Message("tp", "all_gather", "backward", 4 * layers - kept + first + last, block, tp)
        yield Message("tp", "reduce_scatter", "backward", 2 * layers + last, block, tp)
    else:
        yield Message("tp", "all_reduce", "forward", 2 * layers + first, block, tp)
        yield Message("tp", "all_reduce", "recompute", ends, block, tp)
        yield Message("tp", "all_reduce", "backward", 2 * layers + last, block, tp)
    tokens = train.micro_batch * job.model.seq / parallel.cp
    # Vocabulary-parallel cross-entropy: the largest logit, the target's logit and the sum, each in fp32.
    yield Message("tp", "all_reduce", "loss", 3 * last, 4 * tokens, tp)
    yield Message("tp", "all_reduce", "grad_norm", 1, TINY_BYTES, tp)


def _tensor_gradients(job: Job, stage: int, data_rank: int) -> Iterator[Message]:
    """What completes gradients over tp, once a step: of this rank's shard with ZeRO, of everything without.

    Tensors that every rank has whole but sees only a part of: norms of queries and keys and the router, and
    with sequence parallelism what acts on a rank's positions, the other norms, learned positions and the
    biases of o and down. And KV heads that several ranks repeat, over those ranks.
    """
    model, tp = job.model, job.parallel.tp
    names: tuple[str, ...] = ("q_norm.weight", "k_norm.weight")
    parts: tuple[str, ...] = ("router",)
    if job.train.sequence_parallel:
        names, parts = (*names, "o.bias", "down.bias"), (*parts, "norm", "positions")
    width = engine_accounting(job.train.precision, job.train.grad_precision).grads
    rank = data_rank if job.train.zero_stage else None
    found = [flat for flat in flats(job, stage) if not is_expert(flat.members[0])]

    def partial(spec: TensorSpec) -> bool:
        return spec.part in parts or spec.name.endswith(names)

    def repeated(spec: TensorSpec) -> bool:
        return is_repeated_head(spec, model=model, tp=tp)

    for wanted, group in ((partial, tp), (repeated, tp // model.kv_heads)):
        size = width * sum(flat.held(wanted, rank) for flat in found)
        yield Message("tp", "all_reduce", "grads", 1 if size else 0, size, group)


def _context(job: Job, stage: int) -> Iterator[Message]:
    model, parallel, cp = job.model, job.parallel, job.parallel.cp
    if cp == 1:
        return
    calls, again = _layer_calls(job, stage), _recomputed_calls(job, stage)
    tokens = job.train.micro_batch * model.seq / cp
    width = model.head_dim * element_bytes(job)
    query = tokens * model.heads / parallel.tp * width
    key = tokens * max(model.kv_heads / parallel.tp, 1) * width
    for phase, times in (("forward", calls), ("recompute", again), ("backward", calls)):
        if parallel.context == "ulysses":
            # Selective recomputation needs the core's output as it is, not exchanged back.
            exchanges = 1 if phase == "recompute" and job.train.recompute == "selective" else 2
            yield Message("cp", "all_to_all", phase, exchanges * times, query, cp)
            yield Message("cp", "all_to_all", phase, 2 * times, key, cp)
        else:
            passes = 2 if phase == "backward" else 1  # keys and values, and on the way back their gradients
            yield Message("cp", "send", phase, passes * times * (cp - 1), 2 * key, cp)


def _pipeline(job: Job, stage: int) -> Iterator[Message]:
    parallel, layout = job.parallel, layout_of(job)
    size = block_bytes(job) / (parallel.tp if job.train.sequence_parallel else 1)
    out = back = 0
    for index, (_, times) in enumerate(chunk_runs(job, stage)):
        after, before = layout.after(stage, index), layout.before(stage, index)
        out += times * (after is not None and after[0] != stage)  # ZB-V's turn stays on its rank
        back += times * (before is not None and before[0] != stage)
    yield Message("pp", "send", "forward", out, size, parallel.pp)
    yield Message("pp", "send", "backward", back, size, parallel.pp)
    for flat in flats(job, stage):
        if flat.tied and has_first(job, stage) != has_last(job, stage):
            yield Message("pp", "all_reduce", "embedding", 1, gradient_bytes(job, flat), 2)
        if layout.copies > 1:
            yield Message("pp", "all_reduce", "copies", 1, gradient_bytes(job, flat), 2)
    yield Message("pp", "all_reduce", "loss", 1, TINY_BYTES, parallel.pp)  # only the last stage knows it
    yield Message("pp", "all_reduce", "grad_norm", 1, TINY_BYTES, parallel.pp)


def _expert(job: Job, stage: int) -> Iterator[Message]:
    """Tokens to the experts and back, and before them, from each rank to each expert, their number.

    Under tensor parallelism every rank of the tp group routes all of the group's tokens.
    """
    moe, ep = job.model.moe, job.parallel.ep
    if moe is None:
        return
    calls, again = _layer_calls(job, stage), 0
    if job.train.recompute == "full":
        again = _recomputed_calls(job, stage)
    size = block_bytes(job) * moe.top_k
    for phase, times in (("forward", calls), ("recompute", again), ("backward", calls)):
        yield Message("ep", "all_to_all", phase, 2 * times, size, ep)
    yield Message("ep", "all_to_all", "routing", calls + again, 8 * moe.experts, ep)
    if moe.aux_loss:  # the balance of a micro-batch is that of all its positions
        yield Message("cp", "all_reduce", "routing", calls + again, 8 * moe.experts, job.parallel.cp)
    yield Message("ep", "all_reduce", "grad_norm", int(job.train.zero_stage == 0), TINY_BYTES, ep)
