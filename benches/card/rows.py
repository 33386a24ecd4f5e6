"""Rows for every task and a tokenizer for them, made on the spot."""

import json
import random
from pathlib import Path

from program import Bench

VOCABULARY = 800
FILES = {"sft": "rows.jsonl", "pretrain": "text.jsonl", "reward": "pairs.jsonl"}


def sentence(rng: random.Random) -> str:
    syllables = ["ba", "co", "du", "el", "fi", "go", "ha", "in", "jo", "ka", "lu", "me", "no", "or", "pi"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 40))]
    return " ".join(words)


def row(rng: random.Random, task: str) -> dict:
    if task == "pretrain":
        return {"text": sentence(rng)}
    if task == "reward":
        return {"prompt": sentence(rng), "chosen": sentence(rng), "rejected": sentence(rng)}
    return {"prompt": sentence(rng), "response": sentence(rng)}


def make(bench: Bench, count: int = 4000) -> Path:
    """The folder with all of it."""
    folder = bench.scratch / "rows"
    if (folder / "tokenizer").exists():
        return folder
    folder.mkdir(exist_ok=True)
    for task, name in FILES.items():
        rng = random.Random(f"rows for {task}")
        (folder / name).write_text("".join(json.dumps(row(rng, task)) + "\n" for _ in range(count)))
    said = bench.plimsoll("tokenizer", "train", "--data", folder / FILES["sft"], "--out", folder / "tokenizer",
                          "--vocab-size", VOCABULARY, "--quiet")
    if said.code != 0:
        raise RuntimeError(f"tokenizer train: {said.error()}")
    return folder
