"""Holds the conversations of a file with a checkpoint: one line a turn, an empty line between conversations.

python converse.py --model models/tessera-pocket [--lines conversations.txt]
Prints each line after `U` and the greedy reply, quoted, after `A`. What is a good reply is for a reader to judge.
"""

import argparse
from pathlib import Path

import torch

from evaluate import Evaluator, load_model
from example import assistant, user
from generate import Decoder
from tokenizer import Tokenizer

REPLY_LIMIT = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a released checkpoint's folder, or a state.pt")
    parser.add_argument("--tokenizer", help="folder with tiktoken.model; the model's own by default")
    parser.add_argument("--lines", default=str(Path(__file__).with_name("conversations.txt")))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.tokenizer or args.model)
    evaluator = Evaluator(Decoder(load_model(args.model, args.device), tokenizer.pad, tokenizer.im_end), tokenizer)
    for conversation in Path(args.lines).read_text().strip().split("\n\n"):
        messages: list[dict] = []
        for line in conversation.splitlines():
            messages.append(user(line))
            reply = evaluator.answers([evaluator.prompt(messages, [])], REPLY_LIMIT)[0]
            messages.append(assistant(reply))
            print(f"U {line}\n  A {reply!r}", flush=True)


if __name__ == "__main__":
    main()
