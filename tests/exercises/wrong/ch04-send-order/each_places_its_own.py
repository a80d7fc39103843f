# says: Two neighbours that both send first wait for ever
def with_messages(programs):
    """Every stage receives right before it computes, and sends right after."""
    last = len(programs) - 1
    found = []
    for stage, program in enumerate(programs):
        actions = []
        for action in program:
            op, i = action[0], action[1:]
            if op == "F" and stage > 0:
                actions.append(f"RF{i}")
            if op == "B" and stage < last:
                actions.append(f"RB{i}")
            actions.append(action)
            if op == "F" and stage < last:
                actions.append(f"SF{i}")
            if op == "B" and stage > 0:
                actions.append(f"SB{i}")
        found.append(actions)
    return found
