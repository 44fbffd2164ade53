"""EPLB from its description, one layer at a time, in plain Python. https://github.com/deepseek-ai/EPLB"""

from __future__ import annotations


def slow_eplb(load: list[float], redundant: int, groups: int, nodes: int, ranks: int) -> list[list[int]]:
    """The experts of each rank. Groups are packed into nodes first where they divide by them."""
    if groups % nodes:
        groups = nodes = 1
    size = len(load) // groups
    group_load = [sum(load[g * size : (g + 1) * size]) for g in range(groups)]
    placed: list[list[int]] = []
    for node in greedy(group_load, nodes):
        experts = [g * size + e for g in node for e in range(size)]
        copies = dict.fromkeys(experts, 1)
        slots = list(experts)
        for _ in range(redundant // nodes):
            hottest = max(experts, key=lambda e: load[e] / copies[e])
            copies[hottest] += 1
            slots.append(hottest)
        for rank in greedy([load[e] / copies[e] for e in slots], ranks // nodes):
            placed.append([slots[s] for s in rank])
    return placed


def greedy(weights: list[float], packs: int) -> list[list[int]]:
    """Heaviest first into the lightest pack that has room."""
    held: list[list[int]] = [[] for _ in range(packs)]
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        open_ = [p for p in held if len(p) < len(weights) // packs]
        min(open_, key=lambda p: sum(weights[i] for i in p)).append(item)
    return held
