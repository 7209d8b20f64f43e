"""Writes the released checkpoint from a training state: FP8 blocks, shards under 16 MiB, config, tokenizer, chat template.

python export.py --state run/state.pt --tokenizer DIR --out models/tessera-pocket
With --bf16 the same weights in BF16, twice the size: not the release, but what its FP8 is measured against.
"""

import argparse
import json
from pathlib import Path

import torch

import checkpoint
from chat import DEFAULT_SYSTEM
from config import PocketConfig
from tokenizer import Tokenizer

RELEASE_LIMIT = 28 * 2**20

# Kimi K2's template with this model's own default system text.
CHAT_TEMPLATE = """{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':'), sort_keys=True) }}<|im_end|>{%- endif -%}
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}<|im_system|>system<|im_middle|>DEFAULT_SYSTEM<|im_end|>{%- endif -%}
{%- if message['role'] == 'user' -%}<|im_user|>user<|im_middle|>{{ message['content'] }}<|im_end|>
{%- elif message['role'] == 'assistant' -%}<|im_assistant|>assistant<|im_middle|>{{ message['content'] or '' }}
{%- if message.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for call in message['tool_calls'] -%}<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>
{%- if call['function']['arguments'] is string -%}{{ call['function']['arguments'] }}{%- else -%}{{ call['function']['arguments'] | tojson }}{%- endif -%}
<|tool_call_end|>{%- endfor -%}<|tool_calls_section_end|>{%- endif -%}<|im_end|>
{%- elif message['role'] == 'tool' -%}<|im_system|>{{ message.get('name') or 'tool' }}<|im_middle|>## Return of {{ message.tool_call_id }}
{{ message['content'] }}<|im_end|>
{%- else -%}<|im_system|>{{ message['role'] }}<|im_middle|>{{ message['content'] }}<|im_end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
""".replace("DEFAULT_SYSTEM", DEFAULT_SYSTEM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.tokenizer)
    state = torch.load(args.state, map_location="cpu", weights_only=True)
    size = checkpoint.save_release(args.out, PocketConfig(), state["parameters"], state["bias"], tokenizer, not args.bf16)
    tokenizer.save(args.out)
    (Path(args.out) / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    print(json.dumps({"step": state["step"], "shard_bytes": size, "shard_mib": round(size / 2**20, 3)}))
    if size > RELEASE_LIMIT and not args.bf16:
        raise SystemExit("the release is larger than 28 MiB")


if __name__ == "__main__":
    main()
