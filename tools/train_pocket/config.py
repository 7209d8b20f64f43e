"""The shape of tessera-pocket: Kimi K2's architecture at pocket size, and what it weighs when released."""

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PocketConfig:
    vocab_size: int = 1024
    hidden_size: int = 384
    num_hidden_layers: int = 8
    first_k_dense_replace: int = 1
    intermediate_size: int = 768  # of the dense layer
    num_attention_heads: int = 8
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 64
    v_head_dim: int = 64
    n_routed_experts: int = 16
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 128
    routed_scaling_factor: float = 2.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 50000.0
    max_position_embeddings: int = 8192
    yarn_factor: float = 4.0
    yarn_original: int = 2048
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float = 1.0
    yarn_mscale_all_dim: float = 1.0

    @property
    def n_moe_layers(self) -> int:
        return self.num_hidden_layers - self.first_k_dense_replace

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """YaRN's temperature enters squared, as in DeepSeek-V3's attention."""
        mscale = 0.1 * self.yarn_mscale_all_dim * math.log(self.yarn_factor) + 1.0
        return self.qk_head_dim**-0.5 * mscale * mscale

    def inverse_frequencies(self) -> list[float]:
        """YaRN: high frequencies stay, low ones are divided by the factor, a ramp lies between."""
        dim, base = self.qk_rope_head_dim, self.rope_theta

        def dimension_of(rotations: float) -> float:
            return dim * math.log(self.yarn_original / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dimension_of(self.yarn_beta_fast)), 0)
        high = min(math.ceil(dimension_of(self.yarn_beta_slow)), dim - 1)
        span = max(high - low, 0.001)
        out = []
        for i in range(dim // 2):
            plain = 1.0 / base ** (2 * i / dim)
            ramp = min(max((i - low) / span, 0.0), 1.0)
            out.append(plain * (1.0 - ramp) + plain / self.yarn_factor * ramp)
        return out

    def release_config(self, end_id: int, pad_id: int, begin_id: int, quantized: bool = True) -> dict:
        """config.json. Kimi K2 writes model_type kimi_k2; deepseek_v3 is what transformers loads without extra code."""
        blocks = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
        shape = {k: v for k, v in asdict(self).items() if not k.startswith("yarn_")}
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **shape,
            "num_key_value_heads": self.num_attention_heads,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "seq_aux": False,
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": False,
            "use_cache": True,
            "rope_scaling": {
                "type": "yarn",
                "factor": self.yarn_factor,
                "original_max_position_embeddings": self.yarn_original,
                "beta_fast": self.yarn_beta_fast,
                "beta_slow": self.yarn_beta_slow,
                "mscale": self.yarn_mscale,
                "mscale_all_dim": self.yarn_mscale_all_dim,
            },
            "bos_token_id": begin_id,
            "eos_token_id": end_id,
            "pad_token_id": pad_id,
            "torch_dtype": "bfloat16",
            **({"quantization_config": blocks} if quantized else {}),
        }
