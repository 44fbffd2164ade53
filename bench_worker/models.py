"""What a model is made of: presets (``models.toml``), local ``config.json`` files, and exact parameter counts.

Sizes are in elements. ``H`` hidden, ``I`` expert intermediate, ``E`` experts, ``k`` top-k. Torch-free.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench_worker.errors import not_one_of, shown
from bench_worker.hf_config import Layers, Size, one_sentence, read_config

__all__ = ["GQA", "MLA", "GatedDeltaNet", "Model", "Parameters", "decode_config", "from_config", "load", "presets"]

MAX_CONFIG_BYTES = 1_000_000

Count = Annotated[int, Field(ge=0, le=10_000)]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GQA(Frozen):
    """Grouped-query attention; ``kv_heads == heads`` is plain multi-head attention."""

    kind: Literal["gqa"]
    heads: Size
    kv_heads: Size
    head_dim: Size
    qk_norm: Literal["head", "width", "unweighted"] | None = Field(
        None, description="RMS norm of queries and keys: one weight for each head, one over all heads, or no weight."
    )
    bias: Literal["qkv", "qkvo"] | None = Field(None, description="Which projections have a bias.")
    output_gate: bool = Field(False, description="The query projection is twice as wide; the half gates the output.")
    sinks: bool = Field(False, description="One learned logit a head joins the softmax.")

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads can't share {self.kv_heads} key-value heads evenly")
        return self

    def parameters(self, hidden: int, tp: int = 1) -> int:
        """Weights of one layer on one of ``tp`` ranks. Heads are split; key-value heads replicate below one a rank."""
        heads, kv_heads = ceil(self.heads / tp), ceil(self.kv_heads / tp)
        out = heads * self.head_dim
        query = out * (2 if self.output_gate else 1)
        kv = kv_heads * self.head_dim
        count = hidden * (query + 2 * kv + out)
        if self.bias is not None:
            count += query + 2 * kv
        if self.bias == "qkvo":
            count += hidden
        if self.qk_norm == "head":
            count += 2 * self.head_dim
        if self.qk_norm == "width":
            count += out + kv
        return count + (heads if self.sinks else 0)

    def kv_values(self, tp: int = 1) -> int:
        """Elements that one token leaves in one layer's KV cache, on one of ``tp`` ranks."""
        return 2 * ceil(self.kv_heads / tp) * self.head_dim


class MLA(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent for all heads."""

    kind: Literal["mla"]
    heads: Size
    q_lora: Size | None = Field(None, description="Rank of the query's down-projection; null: projected directly.")
    kv_lora: Size
    nope: Size
    rope: Size
    v_dim: Size

    def parameters(self, hidden: int, tp: int = 1) -> int:
        """Weights of one layer on one of ``tp`` ranks. Heads are split; down-projections and norms replicate."""
        heads = ceil(self.heads / tp)
        query = heads * (self.nope + self.rope)
        count = hidden * query if self.q_lora is None else self.q_lora * (hidden + 1 + query)
        count += hidden * (self.kv_lora + self.rope) + self.kv_lora
        count += self.kv_lora * heads * (self.nope + self.v_dim)
        return count + heads * self.v_dim * hidden

    def kv_values(self, tp: int = 1) -> int:
        """Elements that one token leaves in one layer's cache: latent and rotary key, whole on every rank."""
        return self.kv_lora + self.rope

    @property
    def expanded_values(self) -> int:
        """Elements of one token's keys and values in all heads, as a prompt's chunk expands them from the latent."""
        return self.heads * (self.nope + self.rope + self.v_dim)


class GatedDeltaNet(Frozen):
    """Linear attention of Qwen3.5 and 3.6 (arXiv 2412.06464): a state of fixed size instead of a KV cache."""

    key_heads: Size
    key_dim: Size
    value_heads: Size
    value_dim: Size
    conv_kernel: Size

    def parameters(self, hidden: int, tp: int = 1) -> int:
        """Weights of one layer on one of ``tp`` ranks: q, k, v, z, a, b, convolution, decay, norm and output."""
        value_heads = ceil(self.value_heads / tp)
        value = value_heads * self.value_dim
        mixed = self._mixed(tp)
        return (
            hidden * (mixed + value + 2 * value_heads)
            + mixed * self.conv_kernel
            + 2 * value_heads
            + self.value_dim
            + value * hidden
        )

    def state_values(self, tp: int = 1) -> tuple[int, int]:
        """Elements a sequence holds in one layer: the recurrent state, and the convolution's last inputs."""
        recurrent = ceil(self.value_heads / tp) * self.key_dim * self.value_dim
        return recurrent, self._mixed(tp) * (self.conv_kernel - 1)

    def _mixed(self, tp: int) -> int:
        return 2 * ceil(self.key_heads / tp) * self.key_dim + ceil(self.value_heads / tp) * self.value_dim


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of the text model by part. ``active``: all outside the routed experts, and k of E of them."""

    attention: int
    experts: int
    shared_experts: int
    dense_ffn: int
    router: int
    norms: int
    embedding: int
    lm_head: int
    inactive_experts: int

    @property
    def parts(self) -> dict[str, int]:
        return {part: count for part, count in asdict(self).items() if part != "inactive_experts"}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        return self.total - self.inactive_experts


class Model(Frozen):
    """One mixture-of-experts transformer. Layers that aren't dense hold ``experts`` routed experts each."""

    name: str
    hidden: Size
    layers: Layers
    vocab: Size
    max_context: Size
    tied_embeddings: bool = Field(False, description="The head reads the embedding's weights.")

    experts: Size
    top_k: Size
    expert_intermediate: Size
    expert_activation: Literal["swiglu", "swiglu_oai"] = Field("swiglu", description="As DeepSpeed names them.")
    expert_bias: bool = False
    shared_intermediate: Annotated[int, Field(ge=0, le=10**8)] = Field(0, description="Shared experts' summed width.")
    shared_gate: bool = Field(False, description="A sigmoid gate [H] scales the shared expert's output.")
    dense_layers: Count = Field(0, description="Layers with a dense FFN in the experts' place.")
    dense_intermediate: Annotated[int, Field(ge=0, le=10**8)] = 0

    scoring: Literal["softmax", "sigmoid", "softmax_topk"] = Field(
        ..., description="softmax_topk: the softmax runs over the k chosen logits alone."
    )
    renormalize: bool = Field(False, description="The k weights are divided by their sum.")
    route_scale: Annotated[float, Field(gt=0)] = 1.0
    router_bias: bool = Field(False, description="The gate's product has a bias.")
    selection_bias: bool = Field(False, description="A bias joins the scores for choosing only, never the weights.")
    weight_on_input: bool = Field(False, description="The routing weight scales the expert's input, not its output.")
    num_groups: Size = 1
    topk_groups: Size = 1

    attention: Annotated[GQA | MLA, Field(discriminator="kind")]
    sliding_layers: Count = Field(0, description="Layers that look back `window` tokens at most.")
    window: Size | None = Field(
        None, description="Tokens a sliding layer sees; Llama 4's chunk, which bounds its chunked layers from above."
    )
    linear_layers: Count = Field(0, description="Layers with `linear` attention in the place of `attention`.")
    linear: GatedDeltaNet | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        per_group = self.experts // self.num_groups
        for wrong, sentence in (
            (self.top_k > self.experts, f"top_k {self.top_k} is above the {self.experts} experts"),
            (self.dense_layers >= self.layers, f"none of the {self.layers} layers is a mixture of experts"),
            (self.full_layers < 0, f"sliding and linear layers are more than the {self.layers} layers"),
            (bool(self.dense_layers) != bool(self.dense_intermediate), "dense layers and their width go together"),
            (bool(self.sliding_layers) != (self.window is not None), "sliding layers and their window go together"),
            (bool(self.linear_layers) != (self.linear is not None), "linear layers and their sizes go together"),
            (self.experts % self.num_groups, f"{self.num_groups} groups don't divide {self.experts} experts"),
            (self.topk_groups > self.num_groups, f"{self.topk_groups} of {self.num_groups} groups can't be kept"),
            (self.top_k > self.topk_groups * per_group, f"the groups kept hold fewer than top_k {self.top_k} experts"),
        ):
            if wrong:
                raise ValueError(sentence)
        return self

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def full_layers(self) -> int:
        return self.layers - self.sliding_layers - self.linear_layers

    @property
    def attention_layers(self) -> dict[str, int]:
        """Layers by kind of attention, of the kinds that the model has: ``full``, ``sliding``, ``linear``."""
        kinds = {"full": self.full_layers, "sliding": self.sliding_layers, "linear": self.linear_layers}
        return {kind: count for kind, count in kinds.items() if count}

    def attention_parameters(self, kind: str, tp: int = 1) -> int:
        """Attention weights of one layer of that kind, on one of ``tp`` ranks."""
        if kind == "linear":
            assert self.linear is not None
            return self.linear.parameters(self.hidden, tp)
        return self.attention.parameters(self.hidden, tp)

    @property
    def expert_parameters(self) -> int:
        """One expert: gate, up and down projection, 3·H·I, and their biases where it has them."""
        biases = 2 * self.expert_intermediate + self.hidden if self.expert_bias else 0
        return 3 * self.hidden * self.expert_intermediate + biases

    @property
    def shared_parameters(self) -> int:
        """The shared experts of one MoE layer, with their gate."""
        return 3 * self.hidden * self.shared_intermediate + (self.hidden if self.shared_gate else 0)

    @property
    def dense_parameters(self) -> int:
        """The FFN of one dense layer."""
        return 3 * self.hidden * self.dense_intermediate

    @property
    def router_parameters(self) -> int:
        """The gate of one MoE layer. The selection bias isn't counted: transformers holds it as a buffer."""
        return self.hidden * self.experts + (self.experts if self.router_bias else 0)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    def parameters(self) -> Parameters:
        """Exact counts of the whole text model, as transformers instantiates it."""
        expert = self.moe_layers * self.expert_parameters
        return Parameters(
            attention=sum(n * self.attention_parameters(kind) for kind, n in self.attention_layers.items()),
            experts=expert * self.experts,
            shared_experts=self.moe_layers * self.shared_parameters,
            dense_ffn=self.dense_layers * self.dense_parameters,
            router=self.moe_layers * self.router_parameters,
            norms=(2 * self.layers + 1) * self.hidden,
            embedding=self.embedding_parameters,
            lm_head=0 if self.tied_embeddings else self.embedding_parameters,
            inactive_experts=expert * (self.experts - self.top_k),
        )

    def attention_not_measurable(self) -> str | None:
        """Why the attention stage can't measure this model, or None where it can."""
        if self.linear_layers:
            return (
                f"{self.name} has {self.linear_layers} linear-attention layers of {self.layers}: "
                "its gated delta-net layers can't be measured yet"
            )
        if isinstance(self.attention, MLA) and self.attention.q_lora is None:
            return f"{self.name} projects its queries without a down-projection, which can't be measured yet"
        if isinstance(self.attention, GQA) and self.attention.output_gate:
            return f"{self.name} gates its attention's output, which can't be measured yet"
        return None


@cache
def presets() -> dict[str, Model]:
    """The built-in models by name, in the order of ``models.toml``."""
    tables = tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))
    return {name: Model(name=name, **fields) for name, fields in tables.items()}


def load(name_or_path: str, *, allow_paths: bool = False) -> Model:
    """A preset by its name or, where paths are allowed, the model of a Hugging Face ``config.json``.

    A path ends in ``.json`` or contains a path separator. Raises ValueError with one sentence.
    """
    if name_or_path in presets():
        return presets()[name_or_path]
    if not name_or_path.endswith(".json") and not {"/", "\\"} & set(name_or_path):
        raise ValueError(not_one_of(name_or_path, presets()))
    if not allow_paths:
        raise ValueError(f"{shown(name_or_path)} is a file path; file paths are for the command line only")
    try:
        return from_config(_json_object(Path(name_or_path)), _name_of(Path(name_or_path)))
    except ValueError as error:
        raise ValueError(f"{shown(name_or_path, 200)}: {error}") from None


def from_config(config: dict[str, Any], name: str) -> Model:
    """The model that a decoded Hugging Face ``config.json`` describes. Raises ValueError with one sentence."""
    fields = read_config(config)
    try:
        return Model(name=name, **fields)
    except ValidationError as error:
        raise ValueError(one_sentence(error)) from None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise ValueError("is a directory; name the config.json in it")
        if not path.exists():
            raise ValueError("there is no such file")
        if not path.is_file():  # a pipe or a device would never end
            raise ValueError("is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror})") from None
    return decode_config(data)


def decode_config(data: bytes) -> dict[str, Any]:
    """The object in the bytes of a ``config.json``. Raises ValueError: a sentence, but for its subject."""
    if len(data) > MAX_CONFIG_BYTES:
        raise ValueError(f"has more than {MAX_CONFIG_BYTES:,} bytes; a config.json has a few thousand")
    try:
        config = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text (byte {error.start} is not UTF-8)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
    except (RecursionError, ValueError):  # nested too deep, or a number of thousands of digits
        raise ValueError("is not valid JSON") from None
    if not isinstance(config, dict):
        raise ValueError("holds no JSON object")
    return config


def _name_of(path: Path) -> str:
    """``qwen3/config.json`` is named after its folder, ``qwen3.json`` after itself."""
    return (path.stem if path.stem != "config" else path.absolute().parent.name) or path.stem
