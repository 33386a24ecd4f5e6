"""Conversations with four candidates each: the larger the digit that an answer gives, the more relevant it is."""

import json
import random
import sys
from pathlib import Path


def main(folder):
    draw = random.Random(2)
    for name, count in (("train", 400), ("eval", 40)):
        with open(folder / f"ranking-{name}.jsonl", "w") as file:
            for _ in range(count):
                digits = draw.sample(range(10), 4)
                turns = [({"from": "human", "value": "?"}, {"from": "gpt", "value": str(digit)}) for digit in digits]
                row = {"conversations": [turn for both in turns for turn in both], "auxiliary_labels": digits}
                file.write(json.dumps(row) + "\n")


main(Path(sys.argv[1]))
