"""Times Hugging Face datasets' `map` with a fast tokenizer on the rows that crates/data/examples/tokenise.rs times.

    python benches/peers/tokenise_hf.py make rows.jsonl 200 /usr/share /usr/lib/python3   # 200 MB of rows from text files
    plimsoll tokenizer train --data rows.jsonl --out tokenizer --vocab-size 32000 --limit 100MiB
    cargo run --release -p plimsoll-data --example tokenise -- rows.jsonl tokenizer
    python benches/peers/tokenise_hf.py time rows.jsonl tokenizer 2                          # with 2 processes

Only `map` is timed, from rows that are already in Arrow's memory map to ids in its cache: reading the JSON is left out.
"""

import json
import os
import pathlib
import sys
import tempfile
import time

ENDINGS = (".py", ".txt", ".md", ".rst", ".html", ".c", ".h", ".json")


def texts(roots):
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = pathlib.Path(folder, name)
                if name.endswith(ENDINGS) and path.is_file() and not path.is_symlink():
                    try:
                        yield path.read_text(encoding="utf-8")
                    except (UnicodeDecodeError, OSError):
                        continue


def make(out, megabytes, *roots):
    written = 0
    with open(out, "w", encoding="utf-8") as file:
        for text in texts(roots):
            # Questions of up to 400 characters, answers of up to 1,200.
            for start in range(0, len(text) - 200, 1600):
                row = {"prompt": text[start:start + 400], "response": text[start + 400:start + 1600]}
                line = json.dumps(row, ensure_ascii=False) + "\n"
                written += len(line.encode())
                file.write(line)
            if written > int(megabytes) * 1_000_000:
                return


def measure(rows, folder, processes):
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as cache:
        data = datasets.load_dataset("json", data_files=rows, split="train", cache_dir=cache)
        size = sum(len(p.encode()) + len(r.encode()) for p, r in zip(data["prompt"], data["response"]))

        def encode(batch):
            both = [p + r for p, r in zip(batch["prompt"], batch["response"])]
            return {"input_ids": tokenizer(both, return_attention_mask=False)["input_ids"]}

        start = time.perf_counter()
        out = data.map(encode, batched=True, num_proc=int(processes), remove_columns=data.column_names)
        seconds = time.perf_counter() - start
        ids = [row["input_ids"] for row in out]
        tokens, id_sum = sum(map(len, ids)), sum(map(sum, ids))
    rate = {"rows_per_s": round(len(data) / seconds), "mb_per_s": round(size / seconds / 1e6, 2)}
    print(json.dumps({"rows": len(data), "text_bytes": size, "tokens": tokens, "id_sum": id_sum, "seconds": round(seconds, 2), **rate}))


if __name__ == "__main__":
    {"make": make, "time": measure}[sys.argv[1]](*sys.argv[2:])
