"""Legality and timing worked out a second time, by plain graphs: what the library is compared with."""

import graphlib
from itertools import pairwise

from pdtlib.plan.schedule import Act


def durations(schedule, costs):
    """(rank, act) -> time, worked out from the costs by position alone."""
    pieces = schedule.layout.length / schedule.stages

    def pick(value, at):
        return value[at] if isinstance(value, list) else value / pieces

    out = {}
    for rank, program in enumerate(schedule.programs):
        for act in program:
            at = schedule.layout.position(rank, act.chunk)
            time = {"F": costs.forward, "B": costs.backward_input, "W": costs.backward_weight}[act.op]
            out[rank, act] = pick(time, at)
            if act.op == "B" and Act("W", *act[1:]) not in program:
                out[rank, act] += pick(costs.backward_weight, at)
    return out


def dependencies(schedule):
    """(rank, act) -> what must be over before, written down again, by position."""
    layout = schedule.layout
    place = {}
    for rank in range(layout.stages):
        for chunk in range(layout.chunks):
            lane = chunk if layout.kind == "two-way" else 0
            place[lane, layout.position(rank, chunk)] = rank, chunk
    graph = {}
    for rank, program in enumerate(schedule.programs):
        for act in program:
            lane = act.chunk if layout.kind == "two-way" else 0
            at = layout.position(rank, act.chunk)
            wanted = []
            if act.op == "F" and at > 0:
                before, chunk = place[lane, at - 1]
                wanted.append((before, Act("F", act.micro_batch, chunk)))
            if act.op == "B":
                wanted.append((rank, Act("F", act.micro_batch, act.chunk)))
                if at < layout.length - 1:
                    behind, chunk = place[lane, at + 1]
                    wanted.append((behind, Act("B", act.micro_batch, chunk)))
            if act.op == "W":
                wanted.append((rank, Act("B", act.micro_batch, act.chunk)))
            graph[rank, act] = wanted
    return graph


def longest_path(schedule, costs):
    """Ends of all actions by a topological order of needs and programs: an oracle for the simulator."""
    time = durations(schedule, costs)
    graph = {node: list(wanted) for node, wanted in dependencies(schedule).items()}
    overlapped = {
        (rank, schedule.programs[rank][index]): (rank, schedule.programs[rank][index + 1])
        for rank, index in schedule.overlapped
    }
    for forward, backward in overlapped.items():  # one node: both needs, both times
        graph[forward] += [node for node in graph.pop(backward) if node != forward]
        time[forward] += time[backward]
    alias = {backward: forward for forward, backward in overlapped.items()}
    for rank, program in enumerate(schedule.programs):
        nodes = [(rank, act) for act in program if (rank, act) not in alias]
        for before, after in pairwise(nodes):
            graph[after].append(before)
    graph = {node: [alias.get(wanted, wanted) for wanted in needs] for node, needs in graph.items()}
    end = {}
    for node in graphlib.TopologicalSorter(graph).static_order():
        arrivals = [end[wanted] + (costs.transfer if wanted[0] != node[0] else 0) for wanted in graph[node]]
        end[node] = max(arrivals, default=0) + time[node]
    return end | {backward: end[forward] for backward, forward in alias.items()}


def independently_legal(schedule):
    """Every action exactly once, and one order of all of them that respects needs and programs."""
    layout = schedule.layout
    for program in schedule.programs:
        if len(set(program)) != len(program):
            return False
        expected = {
            (i, chunk)
            for chunk in range(layout.chunks)
            for i in layout.micro_batches(chunk, schedule.microbatches)
        }
        for op in "FB":
            if {tuple(act[1:]) for act in program if act.op == op} != expected:
                return False
        if not {tuple(act[1:]) for act in program if act.op == "W"} <= expected:
            return False
    graph = dependencies(schedule)
    for rank, program in enumerate(schedule.programs):
        for before, after in pairwise(program):
            graph[rank, after] = [*graph[rank, after], (rank, before)]
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:
        return False
    return True
