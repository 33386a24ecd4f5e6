#!/usr/bin/env python3
"""Tables from what run.py measured.

    python3 benches/card/table.py card.json                               # every stage
    python3 benches/card/table.py card.json --docs                        # the table of docs/measurements.md
    python3 benches/card/table.py card.json --write docs/measurements.md  # puts it there, between its two markers
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

GIB = 1 << 30
MARKERS = ("<!-- benches/card/table.py: begin -->", "<!-- benches/card/table.py: end -->")

FORMATS = {
    "text": str,
    "count": lambda x: f"{x:,.0f}",
    "seconds": lambda x: f"{x:.1f}",
    "ms": lambda x: f"{x:.1f}",
    "ratio": lambda x: f"{x:.2f}",
    "fine": lambda x: f"{x:.4f}",
    "gib": lambda x: f"{x / GIB:.3f}",
    "gb": lambda x: f"{x / 1e9:.2f}",
    "loss": lambda x: f"{x:.10g}",
}


def cell(value, kind: str) -> str:
    """Several values of one figure, as from repeated runs, stand side by side."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(cell(one, kind) for one in value))
    return FORMATS[kind](value)


def markdown(headers: list, rows: list) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def stage_table(stage: dict) -> str:
    """The figures and the verdict of every check."""
    headers = ["check", "result", *[title for title, _, _ in stage["columns"]]]
    rows = []
    for check in stage["checks"]:
        result = "passed" if check["passed"] else f"**failed**: {check['why']}".replace("|", "/").replace("\n", " ")
        rows.append([check["name"], result, *[cell(check["figures"].get(key), kind) for _, key, kind in stage["columns"]]])
    text = f"## {stage['name']}\n\n{markdown(headers, rows)}\n"
    return text + "".join(f"\n{note}\n" for note in stage["notes"])


def summary(card: dict) -> str:
    """What ran where, and one line for each stage."""
    build, machine = card["build"], card["machine"]
    head = f"Build {build['commit']}{' with changes' if build.get('changed') else ''}, {build.get('rustc', 'rustc unknown')}"
    where = f"{machine['name']}, driver {machine['driver']}" if machine.get("driver") else machine["name"]
    rows = []
    for stage in card["stages"]:
        passed = sum(check["passed"] for check in stage["checks"])
        total = len(stage["checks"])
        verdict = "passed" if passed == total else "**failed**"
        rows.append([stage["name"], verdict, f"{passed} of {total}", f"{stage['seconds']:.0f}"])
    table = markdown(["stage", "result", "checks passed", "seconds"], rows)
    return f"# {where}\n\n{head}. {card['seconds']:.0f} s in all.\n\n{table}\n"


def docs_table(card: dict) -> str:
    """The runs of the timed stage as docs/measurements.md lists them."""
    headers = ["run", "file", "budget", "tok/s", "on card GB", "used / planned", "host MiB", "host used / planned",
               "micro-batch", "ms", "predicted / measured"]
    rows, named = [], None
    timed = next((stage for stage in card["stages"] if stage["name"] == "timed"), None)
    if timed is None:
        sys.exit("error: these figures are of a call without the timed stage\nhint: run.py --only timed --rows all")
    for check in timed["checks"]:
        f = check["figures"]
        if not f:
            continue
        first = f["run"] != named
        named = f["run"]
        host_mib = statistics.median(f["host_used_bytes"]) / (1 << 20)
        rows.append([f["run"] if first else "", f"`{f['file']}`" if first else "", f["budget"],
                     cell(f["tokens_per_s"], "count"), cell(f["card_used_bytes"], "gb"),
                     cell(f["card_ratio"], "fine"), f"{host_mib:.0f}",
                     cell(f["host_ratio"], "ratio"), cell(f["micro_batch_tokens"], "text"), cell(f["step_ms"], "count"),
                     cell(f["predicted_ratio"], "ratio")])
    machine, build = card["machine"], card["build"]
    origin = f"{machine['name']}, driver {machine.get('driver', 'none')}, build {build['commit']}."
    return f"{markdown(headers, rows)}\n\n{origin}"


def write(card: dict, path: Path) -> None:
    text = path.read_text()
    begin, end = MARKERS
    if begin not in text or end not in text:
        sys.exit(f"error: {path} has no lines `{begin}` and `{end}` to write between")
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    path.write_text(f"{before}{begin}\n{docs_table(card)}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables from what run.py measured")
    parser.add_argument("card", type=Path, help="card.json")
    parser.add_argument("--docs", action="store_true", help="only the table of docs/measurements.md")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put that table into FILE")
    arguments = parser.parse_args()
    card = json.loads(arguments.card.read_text())
    if arguments.write:
        write(card, arguments.write)
    elif arguments.docs:
        print(docs_table(card))
    else:
        print("\n".join([summary(card), *[stage_table(stage) for stage in card["stages"]]]))


if __name__ == "__main__":
    main()
