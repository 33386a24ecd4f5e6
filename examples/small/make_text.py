"""Rows for the small runs that write text: sentences with an order to learn, and prompts with their words turned round."""

import json
import random
import sys

WORDS = ["bow", "keel", "mast", "rope", "sail", "tide", "wind", "anchor", "harbour", "rudder"]


def sentence(draw):
    """Each word is followed by the next of the list, so a model that looks back one word can know it."""
    first = draw.randrange(len(WORDS))
    return " ".join(WORDS[(first + step) % len(WORDS)] for step in range(draw.randrange(4, 9)))


def turned(draw):
    """Four words at least, so that there are runs of four to compare."""
    words = [draw.choice("abcdefgh") for _ in range(draw.randrange(4, 6))]
    return {"prompt": " ".join(words), "response": " ".join(reversed(words))}


def write(path, rows):
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def main(folder):
    draw = random.Random(5)
    write(f"{folder}/text-train.jsonl", ({"text": sentence(draw)} for _ in range(2000)))
    write(f"{folder}/text-eval.jsonl", ({"text": sentence(draw)} for _ in range(100)))
    write(f"{folder}/turned-train.jsonl", (turned(draw) for _ in range(4000)))
    write(f"{folder}/turned-eval.jsonl", (turned(draw) for _ in range(100)))


main(sys.argv[1])
