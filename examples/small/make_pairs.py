"""Pairs of answers: the better one repeats the number asked for."""

import json
import random
import sys
from pathlib import Path


def main(folder):
    draw = random.Random(1)
    for name, count in (("train", 600), ("eval", 60)):
        with open(folder / f"pairs-{name}.jsonl", "w") as file:
            for _ in range(count):
                number, other = draw.sample(range(10, 100), 2)
                row = {"prompt": f"Repeat {number}: ", "chosen": f"yes, {number}", "rejected": f"no, {other}"}
                file.write(json.dumps(row) + "\n")


main(Path(sys.argv[1]))
