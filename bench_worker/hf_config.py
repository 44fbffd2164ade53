"""Hugging Face ``config.json`` files of the known architectures, read into the fields of `bench_worker.models.Model`.

One class an architecture: its attributes are the fields that it reads, under the names that the file uses. A size
without a default must be in the file: transformers' own defaults belong to one model of a family and are wrong for
its others (24 layers for Qwen3-30B-A3B, an expert width of 2048 for OLMoE, a head_dim of 42 for GLM-4.5-Air). What no
field says (sinks, norms, gates) is fixed by the architecture's code in transformers. Multi-token-prediction layers
and vision towers aren't read. Torch-free.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench_worker.errors import not_one_of, shown

__all__ = ["ARCHITECTURES", "Layers", "Size", "one_sentence", "read_config"]

Size = Annotated[int, Field(ge=1, le=10**8)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
LayerType = Literal["full_attention", "sliding_attention", "linear_attention"]


class Config(BaseModel):
    """Fields that every architecture has."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_experts_per_tok: Size
    vocab_size: Size
    max_position_embeddings: Size
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    def fields(self) -> dict[str, Any]:
        return {
            "hidden": self.hidden_size,
            "layers": self.num_hidden_layers,
            "top_k": self.num_experts_per_tok,
            "vocab": self.vocab_size,
            "max_context": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
        }


class WithGQA(Config):
    """Grouped-query attention."""

    num_key_value_heads: Size
    head_dim: Size
    biased: ClassVar[str] = "qkvo"  # the projections that attention_bias speaks of

    def gqa(self, **more: Any) -> dict[str, Any]:
        return {
            "kind": "gqa",
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "bias": self.biased if self.attention_bias else None,
            **more,
        }


class Mixtral(Config):
    num_key_value_heads: Size
    head_dim: Size | None = None
    num_local_experts: Size
    intermediate_size: Size
    sliding_window: Size | None = None

    def fields(self) -> dict[str, Any]:
        return super().fields() | {
            "experts": self.num_local_experts,
            "expert_intermediate": self.intermediate_size,
            "scoring": "softmax",
            "renormalize": True,
            "attention": _plain_gqa(self),
            **_all_sliding(self.num_hidden_layers, self.sliding_window),
        }


class Olmoe(Config):
    num_key_value_heads: Size
    head_dim: Size | None = None
    num_experts: Size
    intermediate_size: Size
    norm_topk_prob: bool

    def fields(self) -> dict[str, Any]:
        return super().fields() | {
            "experts": self.num_experts,
            "expert_intermediate": self.intermediate_size,
            "scoring": "softmax",
            "renormalize": self.norm_topk_prob,
            "attention": _plain_gqa(self) | {"qk_norm": "width", "bias": "qkvo" if self.attention_bias else None},
        }


class Qwen3Moe(WithGQA):
    num_experts: Size
    moe_intermediate_size: Size
    norm_topk_prob: bool
    intermediate_size: Size | None = None
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] = []
    use_sliding_window: bool = False
    sliding_window: Size | None = None

    def fields(self) -> dict[str, Any]:
        step, only_dense = self.decoder_sparse_step, set(self.mlp_only_layers)
        dense = sum(i in only_dense or (i + 1) % step != 0 for i in range(self.num_hidden_layers))
        window = self.sliding_window if self.use_sliding_window else None
        return super().fields() | {
            "experts": self.num_experts,
            "expert_intermediate": self.moe_intermediate_size,
            "dense_layers": dense,
            "dense_intermediate": (self.intermediate_size or 0) if dense else 0,
            "scoring": "softmax",
            "renormalize": self.norm_topk_prob,
            "attention": self.gqa(qk_norm="head"),
            **_all_sliding(self.num_hidden_layers, window),
        }


class Qwen35Moe(WithGQA):
    num_experts: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    layer_types: list[LayerType]
    linear_num_key_heads: Size
    linear_key_head_dim: Size
    linear_num_value_heads: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size

    def fields(self) -> dict[str, Any]:
        linear = _layers_of(self.layer_types, self.num_hidden_layers, "linear_attention")
        delta_net = {
            "key_heads": self.linear_num_key_heads,
            "key_dim": self.linear_key_head_dim,
            "value_heads": self.linear_num_value_heads,
            "value_dim": self.linear_value_head_dim,
            "conv_kernel": self.linear_conv_kernel_dim,
        }
        return super().fields() | {
            "experts": self.num_experts,
            "expert_intermediate": self.moe_intermediate_size,
            "shared_intermediate": self.shared_expert_intermediate_size,
            "shared_gate": True,
            "scoring": "softmax",
            "renormalize": True,
            "attention": self.gqa(qk_norm="head", output_gate=True),
            "linear_layers": linear,
            "linear": delta_net if linear else None,
        }


class GptOss(WithGQA):
    num_local_experts: Size
    intermediate_size: Size
    layer_types: list[LayerType]
    sliding_window: Size

    def fields(self) -> dict[str, Any]:
        sliding = _layers_of(self.layer_types, self.num_hidden_layers, "sliding_attention")
        return super().fields() | {
            "experts": self.num_local_experts,
            "expert_intermediate": self.intermediate_size,
            "expert_bias": True,
            "expert_activation": "swiglu_oai",
            "scoring": "softmax_topk",
            "router_bias": True,
            "attention": self.gqa(sinks=True),
            "sliding_layers": sliding,
            "window": self.sliding_window if sliding else None,
        }


class WithSharedExperts(Config):
    """DeepSeek-V3's MoE layer, which GLM-4.5 shares: sigmoid with a selection bias, after the first dense layers."""

    n_routed_experts: Size
    n_shared_experts: Annotated[int, Field(ge=0, le=1000)]
    moe_intermediate_size: Size
    intermediate_size: Size
    first_k_dense_replace: Annotated[int, Field(ge=0, le=10_000)]
    norm_topk_prob: bool
    routed_scaling_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    n_group: Size
    topk_group: Size
    moe_layer_freq: Literal[1] = 1

    def fields(self) -> dict[str, Any]:
        return super().fields() | {
            "experts": self.n_routed_experts,
            "expert_intermediate": self.moe_intermediate_size,
            "shared_intermediate": self.n_shared_experts * self.moe_intermediate_size,
            "dense_layers": self.first_k_dense_replace,
            "dense_intermediate": self.intermediate_size if self.first_k_dense_replace else 0,
            "scoring": "sigmoid",
            "renormalize": self.norm_topk_prob,
            "route_scale": self.routed_scaling_factor,
            "selection_bias": True,
            "num_groups": self.n_group,
            "topk_groups": self.topk_group,
        }


class DeepseekV3(WithSharedExperts):
    attention_bias: Literal[False] = False
    q_lora_rank: Size | None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size

    def fields(self) -> dict[str, Any]:
        attention = {
            "kind": "mla",
            "heads": self.num_attention_heads,
            "q_lora": self.q_lora_rank,
            "kv_lora": self.kv_lora_rank,
            "nope": self.qk_nope_head_dim,
            "rope": self.qk_rope_head_dim,
            "v_dim": self.v_head_dim,
        }
        return super().fields() | {"attention": attention}


class Glm4Moe(WithSharedExperts, WithGQA):
    biased: ClassVar[str] = "qkv"
    use_qk_norm: bool = False

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"attention": self.gqa(qk_norm="head" if self.use_qk_norm else None)}


class Llama4(WithGQA):
    num_local_experts: Size
    intermediate_size: Size  # of the experts, routed and shared
    intermediate_size_mlp: Size  # of the dense layers
    interleave_moe_layer_step: Size = 1
    moe_layers: list[int] | None = None
    use_qk_norm: bool = True
    attention_chunk_size: Size | None = None
    no_rope_layers: list[int] = []
    no_rope_layer_interval: Size = 4

    def fields(self) -> dict[str, Any]:
        layers = self.num_hidden_layers
        moe = layers // self.interleave_moe_layer_step if self.moe_layers is None else len(set(self.moe_layers))
        # Layers with rotary positions attend within a chunk; those without look at everything.
        rotary = sum(map(bool, self.no_rope_layers)) or layers - layers // self.no_rope_layer_interval
        chunked = rotary if self.attention_chunk_size is not None else 0
        return super().fields() | {
            "experts": self.num_local_experts,
            "expert_intermediate": self.intermediate_size,
            "shared_intermediate": self.intermediate_size,
            "dense_layers": layers - moe,
            "dense_intermediate": self.intermediate_size_mlp if layers > moe else 0,
            "scoring": "sigmoid",
            "weight_on_input": True,
            "attention": self.gqa(qk_norm="unweighted" if self.use_qk_norm else None),
            "sliding_layers": chunked,
            "window": self.attention_chunk_size if chunked else None,
        }


#: By the file's ``model_type``; a multimodal file holds the text model under ``text_config``.
ARCHITECTURES: dict[str, type[Config]] = {
    "qwen3_moe": Qwen3Moe,
    "qwen3_5_moe": Qwen35Moe,
    "deepseek_v3": DeepseekV3,
    "mixtral": Mixtral,
    "gpt_oss": GptOss,
    "glm4_moe": Glm4Moe,
    "olmoe": Olmoe,
    "llama4": Llama4,
}


def read_config(config: dict[str, Any]) -> dict[str, Any]:
    """The `Model` fields, without its name, of a decoded ``config.json``. Raises ValueError with one sentence."""
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else config
    kind = merged.get("model_type")
    if kind is None:
        raise ValueError(
            "the config has no model_type; a mixture-of-experts config.json has one "
            f"({', '.join(ARCHITECTURES)}) and fields such as num_experts, num_experts_per_tok, moe_intermediate_size"
        )
    architecture = ARCHITECTURES.get(str(kind).removesuffix("_text"))
    if architecture is None:
        raise ValueError(f"the config's model_type {not_one_of(kind, ARCHITECTURES)}")
    try:
        return architecture.model_validate(merged).fields()
    except ValidationError as error:
        raise ValueError(one_sentence(error)) from None


def one_sentence(error: ValidationError) -> str:
    """What is wrong with a config: every missing field, else the first wrong value."""
    problems = error.errors()
    missing = [str(p["loc"][-1]) for p in problems if p["type"] == "missing"]
    if missing:
        return f"the config lacks {', '.join(missing)}"
    first = problems[0]
    if first["type"] == "value_error":
        return f"the config is inconsistent: {first['ctx']['error']}"
    field = ".".join(map(str, first["loc"]))
    return f"the config's {field} is {shown(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _plain_gqa(config: Mixtral | Olmoe) -> dict[str, Any]:
    """Attention of architectures whose heads split the hidden size, unless the file says otherwise."""
    if config.head_dim is None and config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"the config lacks head_dim, and {config.num_attention_heads} heads don't divide {config.hidden_size}"
        )
    return {
        "kind": "gqa",
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim or config.hidden_size // config.num_attention_heads,
    }


def _all_sliding(layers: int, window: int | None) -> dict[str, Any]:
    return {} if window is None else {"sliding_layers": layers, "window": window}


def _layers_of(types: list[LayerType], layers: int, kind: LayerType) -> int:
    if len(types) != layers:
        raise ValueError(f"the config's layer_types has {len(types)} entries for {layers} layers")
    return types.count(kind)
