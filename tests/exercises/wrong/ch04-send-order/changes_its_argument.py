# says: Build new lists
def with_messages(programs):
    """Both ends of every message stand at one point of a single order of events: no circle can close."""
    last = len(programs) - 1
    done = [0] * len(programs)  # how many computations of each stage have run
    there = [set() for _ in programs]  # what each stage has computed or received
    found = [[] for _ in programs]
    while any(done[s] < len(program) for s, program in enumerate(programs)):
        for s, program in enumerate(programs):
            if done[s] == len(program):
                continue
            action = program[done[s]]
            op, i = action[0], action[1:]
            needs = None
            if op == "F" and s > 0:
                needs = f"RF{i}"
            if op == "B" and s < last:
                needs = f"RB{i}"
            if needs is not None and needs not in there[s]:
                continue  # its message has not come yet: another stage goes first
            found[s].append(action)
            there[s].add(action)
            done[s] += 1
            to = s + 1 if op == "F" else s - 1
            if 0 <= to <= last:  # the sender places its receiver's action, too
                found[s].append(f"S{op}{i}")
                found[to].append(f"R{op}{i}")
                there[to].add(f"R{op}{i}")
    for program, actions in zip(programs, found):
        program[:] = actions
    return found
