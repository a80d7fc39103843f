"""DualPipe: micro-batches enter at both ends of the pipeline; each rank holds a stage of both directions."""

from __future__ import annotations

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule.actions import Act, Program


def dualpipe(stages: int, microbatches: int) -> tuple[list[Program], frozenset[tuple[int, int]]]:
    """Programs, and the (rank, index) of each forward that runs at the same time as the backward behind it.

    DeepSeek-V3 (arXiv 2412.19437), section 3.2.1 and table 2: two copies of the parameters, stages + 1
    activations, and a bubble of (stages/2 - 1)(F&B + B - 3W), where F&B is a forward and a backward that hide
    each other's communication. Chunk 0 of every rank belongs to the direction that starts at rank 0, chunk 1
    to the other one.

    A rank names the direction that starts nearer to it ``near``. The table is made for at least 2 x stages
    micro-batches; with fewer, those that are missing are left out of it.

    Raises ValueError if the number of stages is odd.
    """
    if stages % 2:
        raise BadArgument("stages", stages, "dualpipe pairs its ranks from both ends", ("even numbers",))
    each_way = max(-(-microbatches // 2), stages)
    numbers = ((microbatches + 1) // 2, microbatches // 2)  # micro-batches that really come, by direction

    def program(rank: int) -> tuple[Program, list[int]]:
        from_end = min(rank, stages - 1 - rank)
        to_middle = stages // 2 - 1 - from_end
        near, far = (0, 1) if rank < stages // 2 else (1, 0)
        acts: list[Act] = []
        pairs: list[int] = []
        next_one = {(op, way): 0 for op in "FBW" for way in (0, 1)}
        owed: list[tuple[int, int]] = []  # weight gradients not yet computed: (number, direction)

        def add(op: str, way: int) -> bool:
            number = next_one[op, way]
            next_one[op, way] += 1
            if number >= numbers[way]:
                return False
            acts.append(Act(op, number + (numbers[0] if way else 0), way))
            return True

        def backward_input(way: int) -> None:
            owed.append((next_one["B", way], way))
            add("B", way)

        def weight() -> None:
            number, way = owed.pop(0)
            next_one["W", way] = number
            add("W", way)

        def pair(forward_way: int, backward_way: int) -> None:
            has_forward = add("F", forward_way)
            has_backward = add("B", backward_way)
            if has_forward and has_backward:
                pairs.append(len(acts) - 2)

        for _ in range(2 * to_middle):
            add("F", near)
        for _ in range(from_end + 1):
            add("F", near)
            add("F", far)
        for _ in range(to_middle):
            backward_input(far)
            weight()
            add("F", far)
        for i in range(each_way - stages + from_end + 1):
            if i == 0 and to_middle == 0:  # the middle ranks' first pair is left apart: nothing to hide yet
                add("F", near)
                add("B", far)
            else:
                pair(near, far)
            pair(far, near)
        for _ in range(to_middle):
            add("B", far)
            pair(far, near)
        half = (from_end + 1) // 2
        for i in range(from_end + 1):
            late = i >= half
            if late and (from_end % 2 == 1 or i > half):
                backward_input(far)
            else:
                add("B", far)
            if late:
                backward_input(near)
            else:
                add("B", near)
        for _ in range(to_middle):
            weight()
            backward_input(near)
        while owed:
            weight()
        return tuple(acts), pairs

    tables = [program(rank) for rank in range(stages)]
    overlapped = frozenset((rank, index) for rank, (_, pairs) in enumerate(tables) for index in pairs)
    return [acts for acts, _ in tables], overlapped
