"""The training model against its naive twin, packed attention blocks, and the FP8 release, at a tiny size."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import checkpoint  # noqa: E402
import chat  # noqa: E402
from config import PocketConfig  # noqa: E402
from generate import Decoder  # noqa: E402
from gradcheck import compare  # noqa: E402
from model import BLOCK, Pocket, RowMask, initial_parameters, parameter_shapes  # noqa: E402
from tokenizer import N_RANKS, VOCAB_SIZE, Tokenizer  # noqa: E402

TINY = replace(
    PocketConfig(), num_hidden_layers=2, hidden_size=64, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    intermediate_size=64, num_attention_heads=2, q_lora_rank=32, kv_lora_rank=64, vocab_size=64,
)


def test_gradients_agree_with_the_naive_model():
    errors = compare(TINY, "cpu", torch.float32, compiled=False)
    assert max(errors.values()) < 1e-4, errors


def test_row_mask_lists_exactly_the_blocks_that_documents_touch():
    length = 8 * BLOCK
    start = torch.zeros(2, length, dtype=torch.long)
    for row, cuts in enumerate(([0, 1, 128, 300, 1000], [0, 700, 701])):
        for a, b in zip(cuts, cuts[1:] + [length]):
            start[row, a:b] = a
    mask = RowMask(2, length, "cpu").build(start)
    index = torch.arange(length)
    seen = (index[:, None] >= index) & (start.unsqueeze(-1) <= index)
    blocks = seen.view(2, 8, BLOCK, 8, BLOCK)
    some, every = blocks.any(4).any(2), blocks.all(4).all(2)
    for row in range(2):
        for q in range(8):
            partial = mask.kv_indices[row, 0, q, : mask.kv_num_blocks[row, 0, q]].tolist()
            full = mask.full_kv_indices[row, 0, q, : mask.full_kv_num_blocks[row, 0, q]].tolist()
            assert sorted(partial + full) == [k for k in range(8) if some[row, q, k]]
            assert full == [k for k in range(8) if every[row, q, k]]


def test_cached_decoding_equals_the_whole_forward():
    model = Pocket(TINY, initial_parameters(TINY, 5), torch.zeros(1, 4), torch.float32, compiled=False)
    decoder = Decoder(model, pad=0, end=63)
    prompts = [[5, 9, 2, 7, 7, 1], [3, 8]]
    for prompt, made in zip(prompts, decoder.generate(prompts, 5)):
        whole = list(prompt)
        for token in made:
            logits = decoder.prefill([whole], 1)[2]
            assert int(logits.argmax()) == token
            whole.append(token)
    whole, tail = [4, 6, 1, 2, 9], 3
    steps = [torch.log_softmax(decoder.prefill([whole[:i]], 1)[2][0], -1)[whole[i]].item() for i in range(2, 5)]
    assert abs(decoder.log_likelihoods([whole], [tail])[0] - sum(steps)) < 1e-4


def test_release_round_trip_and_size(tmp_path):
    c = PocketConfig()
    counts = {name: torch.Size(shape).numel() for name, shape in parameter_shapes(c).items()}
    wide = sum(n for name, n in counts.items() if name.endswith("norm") or name in ("embed", "head", "router"))
    assert sum(counts.values()) - wide + 2 * wide < 28 * 2**20
    tiny = replace(TINY, vocab_size=VOCAB_SIZE)
    parameters = initial_parameters(tiny, 1)
    tokenizer = Tokenizer([bytes([i]) for i in range(256)] + [b"a%d" % i for i in range(N_RANKS - 256)])
    checkpoint.save_release(tmp_path, tiny, parameters, torch.ones(1, 4) * 0.25, tokenizer)
    loaded, bias = checkpoint.load_release(tmp_path, tiny)
    assert torch.equal(bias, torch.ones(1, 4) * 0.25)
    for name, w in parameters.items():
        assert (loaded[name] - w).norm() < 0.04 * w.norm(), name
    checkpoint.save_release(tmp_path / "bf16", tiny, parameters, torch.ones(1, 4) * 0.25, tokenizer, quantized=False)
    assert "quantization_config" not in json.loads((tmp_path / "bf16" / "config.json").read_text())
    loaded, bias = checkpoint.load_release(tmp_path / "bf16", tiny)
    assert torch.equal(bias, torch.ones(1, 4) * 0.25)
    assert all(torch.equal(loaded[name], w.bfloat16().float()) for name, w in parameters.items())


def test_special_ids_sit_where_kimi_puts_them():
    assert N_RANKS + chat.N_SPECIAL == VOCAB_SIZE
    kimi = {"[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588,
            "<|im_system|>": 163594, "<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596,
            "<|tool_call_begin|>": 163597, "<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599,
            "<|im_middle|>": 163601, "<think>": 163606, "</think>": 163607}
    assert {name: 163584 + chat.SPECIALS[name] for name in kimi} == kimi
