"""Writes recipes: names, shapes and fills of a family's tensors, plain or quantized."""

import math

VOCAB = 320
EOS = 319
HEAD_GAIN = 2.0


def _normal(deviation: float) -> str:
    return f"normal {round(deviation / 37837 * 2**40)}"


def _uniform(center: float, spread: float) -> str:
    return f"uniform {round(center * 2**24)} {round(spread * 2**24)}"


# The root mean square of uniformly drawn codes: finite e4m3 numbers, and -8 .. 7.
_F8_RMS = 102.0
_INT4_RMS = 4.6


class Builder:
    """Collects the lines of one recipe.

    plain: the dtype of what is not quantized. quantized: None, "f8_block", "f8_channel" or "int4", what `linear` makes of
    a weight unless it is told to leave it plain.
    """

    def __init__(self, plain: str, quantized: str | None = None):
        self.plain, self.quantized = plain, quantized
        self.lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def shard(self) -> None:
        self.lines.append("shard")

    def line(self, name: str, dtype: str, shape: tuple[int, ...], fill: str) -> None:
        self.lines.append(f"{name} {dtype} {'x'.join(map(str, shape))} {fill}")

    def norm(self, name: str, width: int) -> None:
        """Weights around 1, never 1 by rule."""
        self.line(name + ".weight", self.plain, (width,), _uniform(1.0, 0.4))

    def bias(self, name: str, width: int) -> None:
        self.line(name + ".bias", self.plain, (width,), _uniform(0.0, 0.3))

    def embedding(self, name: str, hidden: int, tied: bool = False) -> None:
        """As large as what a layer adds to it; where it is the head too, no larger than a head, or every token would
        bring forth itself."""
        self.line(name + ".weight", self.plain, (VOCAB, hidden), _normal(HEAD_GAIN / math.sqrt(hidden) if tied else 1.0))

    def router(self, name: str, experts: int, hidden: int) -> None:
        self.line(name + ".weight", self.plain, (experts, hidden), _normal(1.0 / math.sqrt(hidden)))
        # In F32 always; wide enough to change what is chosen.
        self.line(name + ".e_score_correction_bias", "F32", (experts,), _uniform(0.1, 0.2))

    def linear(self, name: str, rows: int, cols: int, gain: float = 1.0, keep_plain: bool = False,
               plain_dtype: str | None = None) -> None:
        """A product that keeps the size of its input times `gain`."""
        deviation = gain / math.sqrt(cols)
        weight = name + ".weight"
        if self.quantized is None or keep_plain:
            self.line(weight, plain_dtype or self.plain, (rows, cols), _normal(deviation))
        elif self.quantized == "f8_block":
            scale = deviation / _F8_RMS
            self.line(weight, "F8_E4M3", (rows, cols), "codes")
            self.line(weight + "_scale_inv", "F32", (-(-rows // 128), -(-cols // 128)), _uniform(scale, 0.5 * scale))
        elif self.quantized == "f8_channel":
            scale = deviation / _F8_RMS
            self.line(weight, "F8_E4M3", (rows, cols), "codes")
            self.line(weight + "_scale", "BF16", (rows, 1), _uniform(scale, 0.5 * scale))
        else:
            assert self.quantized == "int4"
            scale = deviation / _INT4_RMS
            self.line(weight + "_packed", "I32", (rows, cols // 8), "codes")
            self.line(weight + "_scale", "BF16", (rows, cols // 32), _uniform(scale, 0.5 * scale))
            self.line(weight + "_shape", "I64", (2,), f"values {rows} {cols}")


def mlp(b: Builder, name: str, hidden: int, intermediate: int, keep_plain: bool = False) -> None:
    b.linear(f"{name}.gate_proj", intermediate, hidden, keep_plain=keep_plain)
    b.linear(f"{name}.up_proj", intermediate, hidden, keep_plain=keep_plain)
    b.linear(f"{name}.down_proj", hidden, intermediate, keep_plain=keep_plain)


def layer_norms(b: Builder, layer: str, hidden: int) -> None:
    b.norm(f"{layer}.input_layernorm", hidden)
    b.norm(f"{layer}.post_attention_layernorm", hidden)


def moe(b: Builder, layer: str, c: dict, shared_plain: bool = False) -> None:
    hidden, intermediate, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    b.router(f"{layer}.mlp.gate", experts, hidden)
    mlp(b, f"{layer}.mlp.experts.{{0..{experts - 1}}}", hidden, intermediate)
    mlp(b, f"{layer}.mlp.shared_experts", hidden, intermediate * c["n_shared_experts"], keep_plain=shared_plain)


def mla(b: Builder, layer: str, c: dict, keep_plain: bool = False) -> None:
    a, hidden, heads = f"{layer}.self_attn", c["hidden_size"], c["num_attention_heads"]
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    if c["q_lora_rank"] is None:
        b.linear(f"{a}.q_proj", heads * qk, hidden, keep_plain=keep_plain)
    else:
        b.linear(f"{a}.q_a_proj", c["q_lora_rank"], hidden, keep_plain=keep_plain)
        b.norm(f"{a}.q_a_layernorm", c["q_lora_rank"])
        b.linear(f"{a}.q_b_proj", heads * qk, c["q_lora_rank"], keep_plain=keep_plain)
    b.linear(f"{a}.kv_a_proj_with_mqa", c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden, keep_plain=keep_plain)
    b.norm(f"{a}.kv_a_layernorm", c["kv_lora_rank"])
    b.linear(f"{a}.kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"],
             keep_plain=keep_plain)
    b.linear(f"{a}.o_proj", hidden, heads * c["v_head_dim"], keep_plain=keep_plain)


def indexer(b: Builder, layer: str, c: dict) -> None:
    a = f"{layer}.self_attn.indexer"
    b.linear(f"{a}.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
    b.linear(f"{a}.wk", c["index_head_dim"], c["hidden_size"])
    b.norm(f"{a}.k_norm", c["index_head_dim"])
    b.bias(f"{a}.k_norm", c["index_head_dim"])
    b.linear(f"{a}.weights_proj", c["index_n_heads"], c["hidden_size"], keep_plain=True)


def gqa(b: Builder, layer: str, c: dict, qkv_bias: bool, qk_norm: bool) -> None:
    a, hidden, width = f"{layer}.self_attn", c["hidden_size"], c["head_dim"]
    for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads")):
        b.linear(f"{a}.{part}_proj", c[heads] * width, hidden)
        if qkv_bias:
            b.bias(f"{a}.{part}_proj", c[heads] * width)
    b.linear(f"{a}.o_proj", hidden, c["num_attention_heads"] * width)
    if qk_norm:
        b.norm(f"{a}.q_norm", width)
        b.norm(f"{a}.k_norm", width)


def mtp_parts(b: Builder, layer: str, hidden: int) -> None:
    """What a multi-token-prediction layer has beside a decoder layer's tensors."""
    b.linear(f"{layer}.eh_proj", hidden, 2 * hidden, keep_plain=True)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        b.norm(f"{layer}.{norm}", hidden)
    b.linear(f"{layer}.shared_head.head", VOCAB, hidden, keep_plain=True)
    b.embedding(f"{layer}.embed_tokens", hidden)


def ends(b: Builder, c: dict, prefix: str = "") -> None:
    """Embedding, last norm and, where it is not tied, the head."""
    b.embedding(f"{prefix}model.embed_tokens", c["hidden_size"], tied=c["tie_word_embeddings"])
    b.norm(f"{prefix}model.norm", c["hidden_size"])
    if not c["tie_word_embeddings"]:
        b.linear(f"{prefix}lm_head", VOCAB, c["hidden_size"], gain=HEAD_GAIN, keep_plain=True)
