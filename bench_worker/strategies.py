"""The routing strategies as data: the parameters each takes, their defaults, and what they mean for a model.

One record serves the form, the rules of an experiment, the memory count and `bench_worker.routing.build`, so all of
them agree. Torch-free. ``T`` tokens, ``E`` experts, ``k`` experts a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from pydantic import ValidationError

from bench_worker.errors import SpecError, not_one_of, shown
from bench_worker.models import Model
from bench_worker.schema_errors import spec_errors
from bench_worker.spec_fields import Routing

__all__ = [
    "NON_CAUSAL", "STRATEGIES", "TOP_P", "Strategy", "capacity", "checked", "chosen_tokens", "default_groups", "filled",
    "foreign", "most_experts", "own_routing", "parameters", "problems", "routed_rows", "selection_bytes", "slots",
]  # fmt: skip

#: Why a strategy that is not `Strategy.causal` can't serve.
NON_CAUSAL = "a token's result depends on later tokens of its step, which rules out decoding token by token"
#: Largest share of the router's probability that ``dynamic`` gathers by default (the paper's value).
TOP_P = 0.4


@dataclass(frozen=True)
class Strategy:
    """``parameters``: the fields of `Routing` that mean something to it, in the order in which a form asks for them.
    ``given``: what the model or the workload decides, beside them. ``causal``: a token's experts depend on no later
    token, so that the strategy can decode token by token."""

    summary: str
    parameters: tuple[str, ...]
    given: tuple[str, ...] = ()
    causal: bool = True


_WEIGHTS = ("scoring", "renormalize", "route_scale", "bias")

STRATEGIES: dict[str, Strategy] = {
    "token_choice": Strategy("Each token picks its k best experts.", ("top_k", "capacity_factor", *_WEIGHTS)),
    "expert_choice": Strategy("Each expert picks its best tokens, all experts equally many.", ("top_k",), causal=False),
    "dynamic": Strategy(
        "Each token takes experts until their probabilities pass top_p.", ("top_k", "top_p", "max_experts")
    ),
    "balanced": Strategy(
        "The best assignment in which every expert gets equally many tokens of the step.", ("top_k", "solver")
    ),
    "hash": Strategy("A fixed table gives each token id its experts; scores play no part.", ("top_k",),
                     given=("vocab", "seed")),
    "soft": Strategy("Every expert computes slots that mix all tokens of the step.", ("top_k", "slots_per_expert"),
                     given=("seed",), causal=False),
    "group_limited": Strategy(
        "Each token picks its k best experts within its best groups of experts.",
        ("top_k", "num_groups", "topk_groups", "group_score", *_WEIGHTS),
    ),
}  # fmt: skip


def parameters(routing: Routing, model: Model, seed: int = 0) -> dict[str, Any]:
    """What ``routing`` sets and, where it sets nothing, what ``model`` does, by name, for `routing.build`.

    Names that stay out have the strategy's own default. A model whose router has no groups leaves those to
    `default_groups`; with groups it decides them together, so an experiment that sets their number decides both.
    ``seed`` draws what is random about a strategy: the table of ``hash``, the slots of ``soft``.
    """
    strategy = STRATEGIES[routing.strategy]
    own: dict[str, Any] = {
        "top_k": model.top_k,
        "scoring": "sigmoid" if model.scoring == "sigmoid" else "softmax",
        "renormalize": model.renormalize or model.scoring == "softmax_topk",
        "route_scale": model.route_scale,
        # No trained bias is at hand, and recorded loads are what the biased router chose: zeros cost what it costs.
        "bias": [0.0] * model.experts if model.selection_bias else None,
    }
    if model.num_groups > 1 and routing.num_groups is None:
        own |= {"num_groups": model.num_groups, "topk_groups": model.topk_groups}
    asked = {name: value for name, value in routing.model_dump().items() if value is not None}
    all_of_them = own | asked | {"vocab": model.vocab, "seed": seed}
    chosen = {name: all_of_them.get(name) for name in (*strategy.parameters, *strategy.given)}
    return {name: value for name, value in chosen.items() if value is not None}


def filled(routing: Routing, model: Model) -> Routing:
    """``routing`` with the model's own values where it sets none."""
    own = parameters(routing, model)
    return routing.model_copy(update={name: own[name] for name in Routing.model_fields if name in own})


def own_routing(model: Model) -> Routing:
    """The strategy that the model itself was trained with."""
    return Routing(strategy="group_limited" if model.num_groups > 1 else "token_choice")


def checked(strategy: str, num_experts: int, params: Mapping[str, Any]) -> dict[str, Any]:
    """``params`` that are set, when they are right for ``strategy`` over ``num_experts`` experts.

    Raises `SpecError` (a ``ValueError``) for the first that isn't: unknown, foreign to the strategy, or out of bounds.
    """
    if strategy not in STRATEGIES:
        raise SpecError("strategy", strategy, not_one_of(strategy, STRATEGIES))
    if num_experts < 1:
        raise SpecError("num_experts", num_experts, f"{shown(num_experts)} is not allowed; it must be at least 1")
    known = STRATEGIES[strategy]
    found = {name: value for name, value in params.items() if value is not None}
    for name in found:
        if name not in (*known.parameters, *known.given):
            raise SpecError(name, found[name], f"{shown(found[name])} {_no_use(strategy)}")
    asked = {name: value for name, value in found.items() if name not in known.given}
    try:
        routing = Routing.model_validate({"strategy": strategy, **asked})
    except ValidationError as error:
        raise spec_errors(error, Routing)[0] from None
    for problem in problems(routing, num_experts):
        raise problem
    return found


def foreign(routing: Routing) -> Iterator[SpecError]:
    """Each parameter that is set and means nothing to the strategy."""
    for name in Routing.model_fields:
        value = getattr(routing, name)
        if name != "strategy" and value is not None and name not in STRATEGIES[routing.strategy].parameters:
            yield SpecError(name, value, f"{shown(value)} {_no_use(routing.strategy)}; leave it empty")


def problems(routing: Routing, num_experts: int, owner: str = "") -> Iterator[SpecError]:
    """What is wrong, beyond types, with a ``routing`` whose parameters are filled in, over ``num_experts`` experts.

    ``owner`` ends the sentences that count the experts: `` of olmoe-1b-7b``.
    """
    strategy, top_k, experts = routing.strategy, routing.top_k, f"{num_experts} experts{owner}"
    if top_k is None:
        instead = {"dynamic": "max_experts", "soft": "slots_per_expert"}.get(strategy)
        if instead is None or getattr(routing, instead) is None:
            needed = strategy if instead is None else f"{strategy} without {instead}"
            yield SpecError("top_k", None, f"is missing; {needed} needs it")
    elif top_k > num_experts:
        yield SpecError("top_k", top_k, f"{shown(top_k)} is above the {experts}")
    elif strategy == "group_limited":
        yield from _wrong_groups(routing, num_experts, top_k, experts)
    if routing.bias is not None and len(routing.bias) != num_experts:
        numbers = f"{len(routing.bias)} number{'s' if len(routing.bias) > 1 else ''}"
        yield SpecError("bias", routing.bias, f"has {numbers}; it must have one for each of the {experts}")


def _wrong_groups(routing: Routing, num_experts: int, top_k: int, experts: str) -> Iterator[SpecError]:
    groups = routing.num_groups
    if groups is not None and num_experts % groups:
        yield SpecError("num_groups", groups, f"{shown(groups)} does not divide the {experts}")
        return
    groups, _ = default_groups(num_experts, top_k, groups)
    kept = routing.topk_groups
    if kept is None:
        return
    if kept > groups:
        yield SpecError("topk_groups", kept, f"{shown(kept)} is above the {groups} groups")
    elif kept * (num_experts // groups) < top_k:
        held = kept * (num_experts // groups)
        yield SpecError("topk_groups", kept, f"{shown(kept)} of {groups} groups hold {held} experts; top_k is {top_k}")


def _no_use(strategy: str) -> str:
    return f"has no use with {strategy}, which takes {', '.join(STRATEGIES[strategy].parameters)}"


def default_groups(num_experts: int, top_k: int, num_groups: int | None = None) -> tuple[int, int]:
    """``(num_groups, topk_groups)`` of a router without groups of its own: the largest divisor of E up to 8, and half
    of them, at least as many as hold k experts."""
    groups = num_groups or max(count for count in range(1, 9) if num_experts % count == 0)
    return groups, max(groups // 2, ceil(top_k * groups / num_experts))


def slots(num_tokens: int, num_experts: int, top_k: int) -> int:
    """Slots an expert of ``soft``: max(1, round(T·k / E)), the compute of top-k (the paper takes T / E)."""
    return max(1, round(num_tokens * top_k / num_experts))


def chosen_tokens(num_tokens: int, num_experts: int, top_k: int) -> int:
    """Tokens that an expert of ``expert_choice`` takes: C = max(1, floor(T·k / E + 0.5)), all T where C is above T."""
    return min(num_tokens, max(1, (2 * num_tokens * top_k + num_experts) // (2 * num_experts)))


def capacity(num_tokens: int, num_experts: int, top_k: int, factor: float) -> int:
    """Assignments that an expert of ``token_choice`` keeps at most: C = ceil(factor · k · T / E) (2006.16668)."""
    return ceil(factor * top_k * num_tokens / num_experts)


def most_experts(num_experts: int, top_k: int | None, max_experts: int | None) -> int:
    """Experts that a token of ``dynamic`` gets at most: ``max_experts``, 2k by default."""
    if max_experts is None:
        assert top_k is not None
        max_experts = 2 * top_k
    return min(max_experts, num_experts)


def routed_rows(strategy: str, params: Mapping[str, Any], num_tokens: int, num_experts: int) -> int:
    """Rows that the experts compute at most for ``num_tokens`` tokens; ``params`` as `parameters` makes them."""
    top_k = params.get("top_k")
    if strategy == "dynamic":
        return num_tokens * most_experts(num_experts, top_k, params.get("max_experts"))
    if strategy == "soft":
        return num_experts * (params.get("slots_per_expert") or slots(num_tokens, num_experts, params["top_k"]))
    if strategy == "expert_choice":
        return num_experts * chosen_tokens(num_tokens, num_experts, params["top_k"])
    return num_tokens * params["top_k"]


def selection_bytes(strategy: str, params: Mapping[str, Any], num_tokens: int, num_experts: int) -> int:
    """What choosing takes beyond a few copies of the scores: the matrices of soft slots, an exact solver's problem."""
    if strategy == "soft":  # logits, dispatch and combine in float32, the last two once more as the rows are; mixers
        return routed_rows(strategy, params, num_tokens, num_experts) * (16 * num_tokens + 8 * num_experts)
    if strategy == "balanced" and params.get("solver") == "exact":
        # A square of places and tokens, copied once; or a variable a token and expert, about 400 bytes in HiGHS.
        return 16 * (num_tokens + num_experts) ** 2 if params["top_k"] == 1 else 400 * num_tokens * num_experts
    return 0
