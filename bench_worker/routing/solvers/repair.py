"""From prices to a balanced assignment: every token takes its best k, then the few units that are over on some experts
are moved to those that lack them, along the cheapest chains of moves.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``N = E + 1`` nodes.

Runs on the host in numpy: what is left to do here is a few dozen short chains, one after the other.

The graph has a node for each expert. Going from e to f costs what the cheapest token loses that has e, lacks f, and
swaps one for the other. Where E doesn't divide k·T, one more node keeps the units above the floor, at most one from
each expert. Tokens that took their best at prices p leave no move that costs less than nothing, so the cheapest chains
from experts with too many to experts with too few keep the assignment optimal for the loads that it has; at the end
those are the right ones (successive shortest paths; Ahuja, Magnanti and Orlin 1993, section 9.7).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

#: Moves begin with the assignments that cost least to give up: this many times E, and this share of all. Once chains
#: cost as much as what was left out, with so many times more.
NEAR, SHARE = 8, 1 / 8
WIDER = 4


def repair(scores: Tensor, price: Tensor, best: Tensor, order: Tensor, same: float) -> Tensor:
    """Balanced experts int64 [T, k] on the host, for ``scores`` [T, E].

    At the prices ``price`` [E], each token likes the experts ``order`` [T, k+1] best, with ``best`` [T, k+1] left of
    their scores. Moves whose costs differ by less than ``same`` are taken for equally cheap.
    """
    margin = best[:, :-1] - best[:, -1:]
    arrays = [tensor.cpu().numpy() for tensor in (scores - price, price, order[:, :-1], margin)]
    ledger = _Ledger(*arrays, same=same)
    while not ledger.is_balanced():
        ledger.move_along_cheapest_chains()
    return torch.from_numpy(ledger.experts)


class _Ledger:
    """Who has whom, what the moves cost, and how many units each node has too many (negative: too few)."""

    def __init__(
        self, net: np.ndarray, price: np.ndarray, experts: np.ndarray, margin: np.ndarray, *, same: float
    ) -> None:
        self.net, self.price, self.experts, self.same = net, price, experts.copy(), same
        self.sink = net.shape[1]  # the node of the units above the floor
        self.has = np.zeros(net.shape, bool)
        np.put_along_axis(self.has, experts, True, axis=1)
        #: ``net``, and −inf where the token has the expert already: no move goes there.
        self.offer = net.copy()
        np.put_along_axis(self.offer, experts, -np.inf, axis=1)

        floor, extras = divmod(experts.size, self.sink)
        ranked = self.price.argsort()[::-1]
        self.extra = np.zeros(self.sink, bool)  # experts with a unit above the floor; the dearest begin with one
        self.extra[ranked[:extras]] = True
        self.extra_price = self.price[ranked[extras - 1 : extras + 1]].mean() if extras else np.inf
        load = np.bincount(experts.ravel(), minlength=self.sink)
        self.balance = np.append(load - floor - self.extra, 0)

        #: cost[e, f] of the cheapest move from e to f; those away from ``stale`` experts are to be priced anew.
        self.cost = np.full((self.sink + 1, self.sink + 1), np.inf)
        self.stale = np.ones(self.sink, bool)
        #: near[e, t]: moves of token t away from expert e are looked at. Those left out cost at least ``horizon``.
        self.near: np.ndarray = np.zeros((self.sink, len(net)), bool)
        self.first_experts, self.margin = experts, margin
        self._look_at(max(NEAR * self.sink, int(SHARE * experts.size)))
        #: What has been added to the price of each node, and how far the dearest chain was.
        self.raised = np.zeros(self.sink + 1)
        self.spent = 0.0

    def is_balanced(self) -> bool:
        return not self.balance.any()

    def move_along_cheapest_chains(self) -> None:
        """Find the cheapest chains from all nodes with too many, and make the moves of every chain that, after those
        made before it, still costs what it did."""
        self._price_moves()
        distance, before = self._distances()
        lacking = np.flatnonzero(self.balance < 0)
        lacking = lacking[distance[lacking].argsort()]
        if self.spent + distance[lacking[0]] > self.horizon:
            self._look_at(WIDER * int(self.near.sum()))
            return
        reached = 0.0
        for node in lacking[self.spent + distance[lacking] <= self.horizon]:
            if self._move(_chain(before, node)):
                reached = distance[node]
        # Prices follow the distances: what was used costs nothing now, and still no move costs less than nothing.
        self.raised -= np.minimum(distance, reached)
        self.spent += reached

    def _look_at(self, count: int) -> None:
        """Look at moves away from the ``count`` assignments cheapest to give up, and from what has moved since."""
        self.stale[:] = True
        if count >= self.margin.size:
            self.near, self.horizon = self.has.T.copy(), np.inf
            return
        self.horizon = float(np.partition(self.margin, count, axis=None)[count])
        cheap = np.zeros_like(self.has)
        np.put_along_axis(cheap, self.first_experts, self.margin < self.horizon, axis=1)
        self.near = ((cheap | self.near.T) & self.has).T.copy()

    def _distances(self) -> tuple[np.ndarray, np.ndarray]:
        """What the cheapest chain to each node costs, and the node before it there, −1 at a start (Bellman and Ford,
        from the nodes whose distance fell alone)."""
        distance = np.where(self.balance > 0, 0.0, np.inf)
        before = np.full(distance.size, -1)
        everyone = np.arange(distance.size)
        fell = np.flatnonzero(self.balance > 0)
        while fell.size:
            cost = np.maximum(self.cost[fell] - self.raised[fell, None] + self.raised, 0.0)
            via = cost + distance[fell, None]
            best = via.argmin(axis=0)
            nearest = via[best, everyone]
            shorter = np.flatnonzero(nearest < distance)
            distance[shorter] = nearest[shorter]
            before[shorter] = fell[best[shorter]]
            fell = shorter
        return distance, before

    def _move(self, chain: list[int]) -> bool:
        """Move as many units along ``chain`` as its ends need and its hops still have at their cost; whether any."""
        units = min(self.balance[chain[0]], -self.balance[chain[-1]])
        hops, movers = list(pairwise(chain)), []
        for giver, taker in hops:
            if units <= 0:
                return False
            movers.append(self._movers(giver, taker, units))
            units = min(units, len(movers[-1]))
        if units <= 0:
            return False
        for (giver, taker), tokens in zip(hops, movers, strict=True):
            self._swap(giver, taker, tokens[:units])
        self.balance[chain[0]] -= units
        self.balance[chain[-1]] += units
        return True

    def _movers(self, giver: int, taker: int, most: int) -> np.ndarray:
        """Up to ``most`` tokens that can swap ``giver`` for ``taker`` at their cost, cheapest first; for a hop over the
        sink, one place, if it is free."""
        if giver == self.sink:
            return np.flatnonzero(self.extra[[taker]])
        if taker == self.sink:
            return np.flatnonzero(~self.extra[[giver]])
        tokens = np.flatnonzero(self.near[giver] & ~self.has[:, taker])
        loss = self.net[tokens, giver] - self.net[tokens, taker]
        cheapest = loss.argsort()[:most]
        return tokens[cheapest[loss[cheapest] <= self.cost[giver, taker] + self.same]]

    def _swap(self, giver: int, taker: int, tokens: np.ndarray) -> None:
        if taker == self.sink:
            self.extra[giver] = True
        elif giver == self.sink:
            self.extra[taker] = False
        else:
            self.stale |= self.near[:, tokens].any(axis=1)
            self.stale[taker] = True
            place = (self.experts[tokens] == giver).argmax(axis=1)
            self.experts[tokens, place] = taker
            self.near[giver, tokens], self.near[taker, tokens] = False, True
            self.has[tokens, giver], self.has[tokens, taker] = False, True
            self.offer[tokens, giver], self.offer[tokens, taker] = self.net[tokens, giver], -np.inf

    def _price_moves(self) -> None:
        """Bring ``cost`` up to date."""
        experts = np.flatnonzero(self.stale)
        self.stale[:] = False
        near = self.near[experts]
        row, token = near.nonzero()
        count = near.sum(axis=1)
        given = count > 0
        self.cost[experts, : self.sink] = np.inf
        if token.size:
            loss = self.net[token, experts[row]][:, None] - self.offer[token]
            first = (count.cumsum() - count)[given]
            self.cost[experts[given], : self.sink] = np.minimum.reduceat(loss, first, axis=0)
        # A unit above the floor costs its holder's price less the price of such a unit.
        self.cost[: self.sink, self.sink] = np.where(self.extra, np.inf, self.extra_price - self.price)
        self.cost[self.sink, : self.sink] = np.where(self.extra, self.price - self.extra_price, np.inf)


def _chain(before: np.ndarray, node: int) -> list[int]:
    """The nodes on the way to ``node``, from its start."""
    chain = [node]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return chain[::-1]
