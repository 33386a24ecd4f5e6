"""One text by a model of seven billion parameters: tokens a second behind the first, and the share of the card's bandwidth."""

from typing import NamedTuple, Optional

from program import REPOSITORY, Bench, Check, Stage, card_memory, checked, overrun

COLUMNS = [["tok/s", "tokens_per_s", "seconds"], ["ms a token", "token_ms", "fine"], ["first token ms", "first_token_ms", "ms"],
           ["weights read GB", "read_gb", "ratio"], ["share of bandwidth", "bandwidth_share", "ratio"],
           ["predicted / measured", "predicted_ratio", "ratio"], ["card used / planned", "card_ratio", "fine"],
           ["host used / planned", "host_ratio", "fine"]]
# Bytes a second that the makers state, by a part of the card's name.
BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}
SHARE_MIN = 0.60
NEW_TOKENS = 256


class Row(NamedTuple):
    name: str
    file: str
    # The table of embeddings, of which a token reads one row.
    table_bytes: int
    settings: tuple = ()
    # Whether the share of the bandwidth decides.
    bound: bool = False
    new_tokens: int = NEW_TOKENS


MISTRAL_TABLE = 32_000 * 4096 * 2
ON_CARD = [Row("Mistral-7B, bf16", "mistral-text", MISTRAL_TABLE, bound=True),
           Row("Mistral-7B, `base: fp8` (share reported only)", "mistral-text", MISTRAL_TABLE, ("base=fp8",)),
           Row("Mistral-7B, `base: nf4` (share reported only)", "mistral-text", MISTRAL_TABLE, ("base=nf4",))]
ON_CPU = [Row("S: Llama of 6 layers, dim 384", "llama-s", 4096 * 384 * 4, new_tokens=64)]


def bandwidth(bench: Bench) -> Optional[float]:
    card = card_memory(bench.device) if bench.on_card else None
    return next((rate for part, rate in BANDWIDTHS.items() if card and part in card["name"]), None)


def measure(bench: Bench, row: Row, bytes_per_s: Optional[float]) -> tuple:
    settings = [part for setting in row.settings for part in ("--set", setting)]
    said = bench.plimsoll("bench", REPOSITORY / f"benches/{row.file}.yaml", "--generate", row.new_tokens, *settings, "--json")
    if said.code != 0:
        return said.error(), {}
    report = said.json()
    read_bytes = report["weights_bytes"] - row.table_bytes
    share = read_bytes * report["tokens_per_s"] / bytes_per_s if bytes_per_s else None
    figures = {
        "tokens_per_s": report["tokens_per_s"], "token_ms": report["token_ms"], "first_token_ms": report["first_token_ms"],
        "read_gb": read_bytes / 1e9, "bandwidth_share": share,
        "predicted_ratio": report["predicted_token_ms"] / report["token_ms"],
        "card_ratio": report["gpu"]["used_bytes"] / report["gpu"]["planned_bytes"] if bench.on_card else None,
        "host_ratio": report["host"]["used_bytes"] / report["host"]["planned_bytes"]}
    faults = [why] if (why := overrun(report, None, bench.memory)) else []
    if report["new_tokens"] != row.new_tokens:
        faults.append(f"{report['new_tokens']} tokens instead of {row.new_tokens}")
    if row.bound and share is None:
        faults.append("the bandwidth of this card is not in the table of generating.py")
    elif row.bound and share < SHARE_MIN:
        faults.append(f"{share:.2f} of the card's bandwidth, at least {SHARE_MIN:.2f} are asked for")
    return "; ".join(faults), figures


def run(bench: Bench) -> Stage:
    stage, bytes_per_s = Stage("generate", COLUMNS), bandwidth(bench)
    for row in ON_CARD if bench.on_card else ON_CPU:
        stage.checks.append(checked(row.name, lambda row=row: measure(bench, row, bytes_per_s)))
    context = "a prompt that fills data.max_length up"
    stage.notes.append(f"{NEW_TOKENS if bench.on_card else 64} greedy tokens of one sequence behind {context}, the first not counted.")
    return stage
