from itertools import product


def shortest(stages, micro_batches, cap):
    """Breadth-first over time. A state counts the F, B and W that each stage has done."""
    last = stages - 1
    start = ((0, 0, 0),) * stages
    goal = ((micro_batches,) * 3,) * stages
    layers = [{start: None}]
    while goal not in layers[-1]:
        reached = {}
        for state in layers[-1]:
            for step in product(*(choices(state, s, last, micro_batches, cap) for s in range(stages))):
                after = tuple(counts for _, counts in step)
                reached.setdefault(after, (state, tuple(op for op, _ in step)))
        layers.append(best(reached))
    return programs(layers, goal, stages)


def choices(state, s, last, micro_batches, cap):
    """What stage s can do next: (action, its counts afterwards)."""
    f, b, w = state[s]
    found = []
    if b < (f if s == last else state[s + 1][1]):
        found.append((f"B{b}", (f, b + 1, w)))
    if f < (micro_batches if s == 0 else state[s - 1][0]) and f - w < cap:
        found.append((f"F{f}", (f + 1, b, w)))
    if w < b:
        found.append((f"W{w}", (f, b, w + 1)))
    return found or [(None, (f, b, w))]


def best(reached):
    """Drop every state that another one is ahead of in all counts: it can do nothing that the other can't."""
    kept, counts_kept = {}, []
    for state in sorted(reached, key=lambda state: -sum(map(sum, state))):
        flat = [count for counts in state for count in counts]
        ahead = any(
            all(ours >= theirs for ours, theirs in zip(other, flat, strict=True)) for other in counts_kept
        )
        if not ahead:
            kept[state] = reached[state]
            counts_kept.append(flat)
    return kept


def programs(layers, goal, stages):
    """Walk back from the goal and collect what every stage did."""
    backwards = [[] for _ in range(stages)]
    state = goal
    for layer in reversed(layers[1:]):
        before, actions = layer[state]
        for s, action in enumerate(actions):
            if action:
                backwards[s].append(action)
        state = before
    return [acts[::-1] for acts in backwards]
