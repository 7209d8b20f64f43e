#!/usr/bin/env python3
"""Makes the tiny checkpoints, small random models with the structure of every family that tessera serves.

    make_tiny_checkpoints.py --recipes                     rewrite tests/goldens/tiny/*/{config.json,recipe.txt,...}
    make_tiny_checkpoints.py --out DIR [NAME ...]          write model folders DIR/NAME from the committed recipes

Needs numpy only. Deterministic: recipe.py says how, and tests/support/recipe_checkpoint.h does the same in C++.
"""

import argparse
import json
import pathlib
import shutil

import families
import recipe
import tiny_tokenizer

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tiny"


def write_recipes() -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer.write(GOLDENS)
    for name, make in families.CHECKPOINTS.items():
        config, text = make()
        folder = GOLDENS / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        inner = config.get("text_config", config)
        generation = {"bos_token_id": inner["bos_token_id"], "eos_token_id": inner["eos_token_id"]}
        (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
        (folder / "recipe.txt").write_text(text)
        (folder / "fingerprint.txt").write_text(recipe.fingerprint(name, recipe.parse(text)) + "\n")


def write_checkpoint(name: str, out: pathlib.Path) -> None:
    """Writes the model folder out/name."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "generation_config.json"):
        shutil.copyfile(GOLDENS / name / file, folder / file)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(GOLDENS / file, folder / file)
    tensors = recipe.parse((GOLDENS / name / "recipe.txt").read_text())
    recipe.write_weights(folder, name, tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them where none is given")
    arguments = parser.parse_args()
    if arguments.recipes == (arguments.out is not None):
        parser.error("one of --recipes and --out")
    if arguments.recipes:
        write_recipes()
        return
    for name in arguments.names or sorted(families.CHECKPOINTS):
        write_checkpoint(name, arguments.out)
        print(arguments.out / name)


if __name__ == "__main__":
    main()
