# says: Each of these stages waits for another one
def with_messages(programs):
    last = len(programs) - 1
    found = []
    for stage, program in enumerate(programs):
        count = sum(action[0] == "F" for action in program)
        first = [f"RF{i}" for i in range(count)] if stage else []
        actions = list(first)
        for action in program:
            op, i = action[0], action[1:]
            if op == "B" and stage < last:
                actions.append(f"RB{i}")
            actions.append(action)
            if op == "F" and stage < last:
                actions.append(f"SF{i}")
            if op == "B" and stage > 0:
                actions.append(f"SB{i}")
        found.append(actions)
    return found
