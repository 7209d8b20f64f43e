"""Loads a released checkpoint in transformers' DeepseekV3ForCausalLM and compares it with the training model.

python verify_release.py --model models/tessera-pocket
The FP8 blocks are dequantized into a temporary FP32 copy, since transformers computes in FP8 on GPUs only. Prints the
relative error of the logits, position by position the worst, and greedy answers to a few prompts.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, DeepseekV3ForCausalLM

import chat
import checkpoint
import score
from config import PocketConfig
from generate import Decoder
from heldout import Cell, example, question
from model import Pocket
from tokenizer import Tokenizer

CELLS = [("arithmetic", 3), ("choice", 2), ("retrieval", 1), ("tools", 2), ("tracing", 2), ("functions", 2)]


def dequantized_copy(source: Path, target: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    plain = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        scale = tensors.get(name + "_scale_inv")
        plain[name] = tensor.float() if scale is None else checkpoint.dequantize(tensor, scale)
    save_file(plain, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    config["torch_dtype"] = "float32"
    (target / "config.json").write_text(json.dumps(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    c, ours = PocketConfig(), Tokenizer.load(args.model)
    theirs = AutoTokenizer.from_pretrained(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        dequantized_copy(Path(args.model), Path(scratch))
        model, report = DeepseekV3ForCausalLM.from_pretrained(scratch, dtype=torch.float32, output_loading_info=True)
        print({key: len(value) for key, value in report.items() if hasattr(value, "__len__")})
    parameters, bias = checkpoint.load_release(args.model, c)
    decoder = Decoder(Pocket(c, parameters, bias, torch.float32, compiled=False), ours.pad, ours.im_end)
    right = 0
    for task, level in CELLS:
        made = example(Cell(task, level, "unseen", 512 if task == "retrieval" else 0), 1000)
        ids = ours.encode_segments(chat.render(question(made), made.tools) + chat.GENERATION_PROMPT)[0]
        messages = question(made)
        text = theirs.apply_chat_template(messages, tools=made.tools or None, tokenize=False, add_generation_prompt=True)
        if theirs(text, add_special_tokens=False)["input_ids"] != ids:
            raise SystemExit(f"{task}: the chat template or tokenizer.json gives other tokens")
        with torch.no_grad():
            want = model(torch.tensor([ids])).logits[0]
            states = decoder._prompt_states([ids], 0)[3][0]
            got = states @ decoder.head.T
            error = ((got - want).norm(dim=-1) / want.norm(dim=-1)).max().item()
            out = model.generate(torch.tensor([ids]), max_new_tokens=120, do_sample=False, eos_token_id=ours.im_end, pad_token_id=ours.pad)
        reply = ours.decode(out[0, len(ids) :].tolist()).removesuffix("<|im_end|>")
        judged = score.judge(made.scoring, reply, made.answer)
        right += judged
        print(f"{task}/{level}: {len(ids)} tokens, worst relative error {error:.1e}, {'right' if judged else 'WRONG'}: {reply!r}")
    print(f"{right} of {len(CELLS)} right")


if __name__ == "__main__":
    main()
