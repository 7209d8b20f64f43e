"""The tiny checkpoints: a configuration and a recipe for each, in the structure of the real family."""

from builder import EOS, VOCAB, Builder, ends, gqa, indexer, layer_norms, mla, mlp, moe, mtp_parts

FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def _compressed(format_name: str, weights: dict, activations: dict | None, ignore: list[str]) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": format_name, "quantization_status": "compressed",
            "kv_cache_scheme": None, "config_groups": {"group_0": group}, "ignore": ignore}


INT4_EXPERTS = _compressed(
    "pack-quantized",
    {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False,
     "actorder": None}, None,
    ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"])


def _f8_channels(ignore: list[str]) -> dict:
    args = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "actorder": None,
            "block_structure": None}
    return _compressed("float-quantized", args | {"strategy": "channel", "dynamic": False, "observer": "minmax"},
                       args | {"strategy": "token", "dynamic": True, "observer": None}, ignore)


def _common(architecture: str, model_type: str, dtype: str, **sizes) -> dict:
    return {"architectures": [architecture], "model_type": model_type, "vocab_size": VOCAB, "bos_token_id": 318,
            "eos_token_id": EOS, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
            "tie_word_embeddings": False, "torch_dtype": dtype, "max_position_embeddings": 4096, **sizes}


def _mla_moe(architecture: str, model_type: str, dtype: str, **sizes) -> dict:
    """DeepSeek-V3's fields; num_key_value_heads is the number of heads, as everywhere with MLA."""
    fields = dict(
        hidden_size=256, intermediate_size=320, moe_intermediate_size=64, num_hidden_layers=3, first_k_dense_replace=1,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=96, kv_lora_rank=128, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=48, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc",
        moe_layer_freq=1, num_nextn_predict_layers=0, rms_norm_eps=1e-6, rope_theta=10000.0)
    return _common(architecture, model_type, dtype, **(fields | sizes))


def _yarn(factor: int, beta_fast: float, mscale: float = 1.0) -> dict:
    """The fields of a context that is `factor` times as long as the 64 tokens of training. With another mscale than
    mscale_all_dim rotated parts are scaled too, by a factor that is not 1."""
    scaling = {"type": "yarn", "factor": float(factor), "original_max_position_embeddings": 64, "beta_fast": beta_fast,
               "beta_slow": 1.0, "mscale": mscale, "mscale_all_dim": 1.0}
    return {"rope_scaling": scaling, "max_position_embeddings": 64 * factor}


def _mla_layers(b: Builder, c: dict, prefix: str = "", plain_outside_experts: bool = False) -> None:
    dense, layers, hidden = c["first_k_dense_replace"], c["num_hidden_layers"], c["hidden_size"]
    for layer in range(layers):
        name = f"{prefix}model.layers.{layer}"
        layer_norms(b, name, hidden)
        mla(b, name, c, keep_plain=plain_outside_experts)
        if layer < dense:
            mlp(b, f"{name}.mlp", hidden, c["intermediate_size"], keep_plain=plain_outside_experts)
        else:
            moe(b, name, c, shared_plain=plain_outside_experts)


def deepseek_v3() -> tuple[dict, str]:
    c = _mla_moe("DeepseekV3ForCausalLM", "deepseek_v3", "float32", rope_scaling=None)
    b = Builder("F32")
    ends(b, c)
    _mla_layers(b, c)
    return c, b.text()


def deepseek_v3_groups_yarn() -> tuple[dict, str]:
    c = _mla_moe("DeepseekV3ForCausalLM", "deepseek_v3", "bfloat16", n_routed_experts=16, num_experts_per_tok=4, n_group=4,
                 topk_group=2, num_nextn_predict_layers=1, **_yarn(40, 32.0, mscale=0.7))
    b = Builder("BF16")
    b.shard()
    ends(b, c)
    _mla_layers(b, c)
    b.shard()
    mtp = f"model.layers.{c['num_hidden_layers']}"
    layer_norms(b, mtp, c["hidden_size"])
    mla(b, mtp, c)
    moe(b, mtp, c)
    mtp_parts(b, mtp, c["hidden_size"])
    return c, b.text()


def deepseek_v3_one_step_queries() -> tuple[dict, str]:
    c = _mla_moe("DeepseekV3ForCausalLM", "deepseek_v3", "float32", num_hidden_layers=2, q_lora_rank=None,
                 norm_topk_prob=False, n_shared_experts=2, rope_scaling=None)
    b = Builder("F32")
    ends(b, c)
    _mla_layers(b, c)
    return c, b.text()


_KIMI = dict(rms_norm_eps=1e-4, routed_scaling_factor=2.827, rope_theta=50000.0, num_experts_per_tok=4,
             **_yarn(32, 1.0))


def kimi_k2() -> tuple[dict, str]:
    """The widths of the KV row are the real ones: 512 latent, 64 rope."""
    c = _mla_moe("DeepseekV3ForCausalLM", "kimi_k2", "bfloat16", **_KIMI, num_hidden_layers=2, kv_lora_rank=512,
                 qk_rope_head_dim=64, num_attention_heads=2, num_key_value_heads=2)
    b = Builder("BF16")
    ends(b, c)
    _mla_layers(b, c)
    return c, b.text()


def kimi_k2_f8_block() -> tuple[dict, str]:
    """kv_a_proj has 144 rows and q_a_proj 96 of 256 columns: blocks that are not whole."""
    c = _mla_moe("DeepseekV3ForCausalLM", "kimi_k2", "bfloat16", **_KIMI, moe_intermediate_size=160,
                 quantization_config=FP8_BLOCKS)
    b = Builder("BF16", "f8_block")
    ends(b, c)
    b.lines.insert(0, "shard")
    _mla_layers(b, c)
    b.shard()
    b.lines.append(b.lines.pop(1))  # The embedding goes last, into the second file.
    return c, b.text()


def kimi_k26_int4() -> tuple[dict, str]:
    text = _mla_moe("DeepseekV3ForCausalLM", "kimi_k2", "bfloat16", **(_KIMI | _yarn(64, 32.0)),
                    quantization_config=INT4_EXPERTS)
    c = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16",
         "tie_word_embeddings": False, "text_config": text,
         "vision_config": {"model_type": "kimi_k25_vision", "hidden_size": 32, "num_hidden_layers": 1}}
    b = Builder("BF16", "int4")
    b.shard()
    ends(b, text, "language_model.")
    _mla_layers(b, text, "language_model.", plain_outside_experts=True)
    b.shard()
    block = "vision_tower.encoder.blocks.0"
    for name, rows, cols in (("wqkv", 96, 32), ("wo", 32, 32), ("mlp.fc0", 64, 32), ("mlp.fc1", 32, 64)):
        b.linear(f"{block}.{name}", rows, cols, keep_plain=True)
        b.bias(f"{block}.{name}", rows)
    for name in (f"{block}.norm0", f"{block}.norm1", "vision_tower.encoder.final_layernorm", "mm_projector.pre_norm"):
        b.norm(name, 32)
        b.bias(name, 32)
    b.line("vision_tower.patch_embed.pos_emb.weight", "BF16", (4, 4, 32), "uniform 0 1000000")
    b.line("vision_tower.patch_embed.proj.weight", "BF16", (32, 3, 2, 2), "uniform 0 1000000")
    b.linear("mm_projector.proj.0", 128, 128, keep_plain=True)
    b.linear("mm_projector.proj.2", 256, 128, keep_plain=True)
    return c, b.text()


def _glm4(dtype: str, **sizes) -> dict:
    fields = dict(
        attention_bias=True, head_dim=32, hidden_size=256, intermediate_size=320, moe_intermediate_size=64,
        num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=8, num_key_value_heads=2, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, use_qk_norm=True, eos_token_id=[EOS, 317])
    return _common("Glm4MoeForCausalLM", "glm4_moe", dtype, **(fields | sizes))


def _glm4_layers(b: Builder, c: dict) -> None:
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    for layer in range(layers + c["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        layer_norms(b, name, hidden)
        gqa(b, name, c, qkv_bias=True, qk_norm=c["use_qk_norm"])
        if layer < c["first_k_dense_replace"]:
            mlp(b, f"{name}.mlp", hidden, c["intermediate_size"])
        else:
            moe(b, name, c)
        if layer >= layers:
            mtp_parts(b, name, hidden)


def glm4_moe() -> tuple[dict, str]:
    c = _glm4("float32", num_nextn_predict_layers=0)
    b = Builder("F32")
    ends(b, c)
    _glm4_layers(b, c)
    return c, b.text()


def glm4_moe_air() -> tuple[dict, str]:
    c = _glm4("bfloat16", use_qk_norm=False, routed_scaling_factor=1.0)
    b = Builder("BF16")
    ends(b, c)
    _glm4_layers(b, c)
    return c, b.text()


def glm4_moe_f8_channel() -> tuple[dict, str]:
    ignore = ["lm_head"] + [f"model.layers.{layer}.mlp.gate" for layer in (1, 2, 3)]
    ignore += ["model.layers.3.eh_proj", "model.layers.3.shared_head.head"]
    c = _glm4("bfloat16", quantization_config=_f8_channels(ignore))
    b = Builder("BF16", "f8_channel")
    b.shard()
    ends(b, c)
    b.shard()
    _glm4_layers(b, c)
    return c, b.text()


def _glm_dsa(dtype: str, **sizes) -> dict:
    fields = dict(
        rms_norm_eps=1e-4, head_dim=16, index_head_dim=32, index_n_heads=16, index_topk=8, index_topk_freq=2,
        index_skip_topk_offset=2, num_hidden_layers=6, qk_nope_head_dim=48, v_head_dim=64, rope_interleave=True,
        indexer_rope_interleave=True, rope_parameters={"rope_theta": 1000000, "rope_type": "default"},
        eos_token_id=[EOS, 317, 316])
    c = _mla_moe("GlmMoeDsaForCausalLM", "glm_moe_dsa", dtype, **(fields | sizes))
    del c["rope_theta"]
    return c


def full_indexers(c: dict) -> list[int]:
    """The layers that run their own indexer."""
    freq, offset = c["index_topk_freq"], c["index_skip_topk_offset"]
    return [i for i in range(c["num_hidden_layers"]) if max(i - offset + 1, 0) % freq == 0]


def _glm_dsa_layers(b: Builder, c: dict) -> None:
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    for layer in range(layers + c["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        layer_norms(b, name, hidden)
        mla(b, name, c)
        if layer >= layers or layer in full_indexers(c):
            indexer(b, name, c)
        if layer < c["first_k_dense_replace"]:
            mlp(b, f"{name}.mlp", hidden, c["intermediate_size"])
        else:
            moe(b, name, c)
        if layer >= layers:
            mtp_parts(b, name, hidden)


def glm_moe_dsa() -> tuple[dict, str]:
    """Layers 0, 1, 3 and 5 have an indexer, 2 and 4 share."""
    c = _glm_dsa("float32")
    b = Builder("F32")
    ends(b, c)
    _glm_dsa_layers(b, c)
    return c, b.text()


def glm_moe_dsa_topk2048() -> tuple[dict, str]:
    """The real index_topk, and a context beyond it; few and small layers, for the reference backend's sake."""
    c = _glm_dsa("float32", index_topk=2048, index_topk_freq=3, num_hidden_layers=3, hidden_size=64, intermediate_size=96,
                 moe_intermediate_size=32, q_lora_rank=48, kv_lora_rank=32, num_attention_heads=2, num_key_value_heads=2,
                 n_routed_experts=4, num_experts_per_tok=2, qk_nope_head_dim=16, v_head_dim=24,
                 max_position_embeddings=8192)
    b = Builder("F32")
    ends(b, c)
    _glm_dsa_layers(b, c)
    return c, b.text()


def glm_moe_dsa_f8_block() -> tuple[dict, str]:
    skipped = [f"model.layers.{i}.self_attn.indexers_proj" for i in range(4)] + [f"model.layers.{i}.mlp.gate" for i in (1, 2)]
    c = _glm_dsa("bfloat16", num_hidden_layers=3, num_nextn_predict_layers=1, moe_intermediate_size=96,
                 quantization_config=FP8_BLOCKS | {"modules_to_not_convert": ["lm_head", "model.embed_tokens",
                                                                              "model.layers.3.eh_proj",
                                                                              "model.layers.3.shared_head.head"] + skipped})
    b = Builder("BF16", "f8_block")
    ends(b, c)
    _glm_dsa_layers(b, c)
    return c, b.text()


def _dense(architecture: str, model_type: str, dtype: str, **sizes) -> dict:
    fields = dict(hidden_size=256, intermediate_size=320, num_hidden_layers=2, num_attention_heads=8,
                  num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0)
    c = _common(architecture, model_type, dtype, **(fields | sizes))
    return c


def _dense_layers(b: Builder, c: dict, qkv_bias: bool, qk_norm: bool) -> None:
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        layer_norms(b, name, c["hidden_size"])
        gqa(b, name, c, qkv_bias, qk_norm)
        mlp(b, f"{name}.mlp", c["hidden_size"], c["intermediate_size"])


def llama() -> tuple[dict, str]:
    c = _dense("LlamaForCausalLM", "llama", "float32", mlp_bias=False, head_dim=24)
    b = Builder("F32")
    ends(b, c)
    _dense_layers(b, c, qkv_bias=False, qk_norm=False)
    return c, b.text()


def qwen2() -> tuple[dict, str]:
    c = _dense("Qwen2ForCausalLM", "qwen2", "bfloat16", tie_word_embeddings=True, rope_theta=1000000.0,
               use_sliding_window=False, rms_norm_eps=1e-6)
    for field in ("attention_bias", "head_dim"):  # As published: biases are the family's, the width follows.
        del c[field]
    b = Builder("BF16")
    ends(b, c)
    _dense_layers(b, c | {"head_dim": 32}, qkv_bias=True, qk_norm=False)
    return c, b.text()


def qwen3() -> tuple[dict, str]:
    c = _dense("Qwen3ForCausalLM", "qwen3", "bfloat16", head_dim=48, rope_theta=1000000.0, use_sliding_window=False,
               rms_norm_eps=1e-6)
    b = Builder("BF16")
    ends(b, c)
    _dense_layers(b, c, qkv_bias=False, qk_norm=True)
    return c, b.text()


CHECKPOINTS = {f.__name__: f for f in (
    llama, qwen2, qwen3, deepseek_v3, deepseek_v3_groups_yarn, deepseek_v3_one_step_queries, kimi_k2, kimi_k2_f8_block,
    kimi_k26_int4, glm4_moe, glm4_moe_air, glm4_moe_f8_channel, glm_moe_dsa, glm_moe_dsa_topk2048, glm_moe_dsa_f8_block)}
