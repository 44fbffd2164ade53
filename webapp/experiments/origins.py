"""Where a whole-model time comes from, in marks beside it and in words below the table (pure)."""

from __future__ import annotations

from collections.abc import Iterable

#: Mark and words of times that the model of a network has a part in, by their origin.
NETWORKS = {
    "modelled": ("≈", "measured compute, modelled network"),
    "assumed": ("?", "measured compute, modelled network, assumed from datasheets"),
}


def mark(origin: str, layer_scale: float) -> str:
    """The mark of a modelled network, then by how much the executed layers scale; empty where all was measured."""
    network, _ = NETWORKS.get(origin, ("", ""))
    return f"{network}{_scale(layer_scale)}"


def scales(layer_scales: Iterable[float]) -> list[str]:
    """By how much times scale, each once."""
    return list(dict.fromkeys(text for scale in layer_scales if (text := _scale(scale))))


def networks(origins: Iterable[str]) -> list[tuple[str, str]]:
    """Marks of modelled networks with their words, each once."""
    return list(dict.fromkeys(NETWORKS[origin] for origin in origins if origin in NETWORKS))


def _scale(layer_scale: float) -> str:
    return "" if layer_scale == 1 else f"×{layer_scale:g}"
