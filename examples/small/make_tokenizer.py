"""A tokenizer whose words are the 256 bytes and four special tokens, with a chat template of two of them."""

import json
import sys
from pathlib import Path

PAD, USER, ANSWER, END = SPECIALS = ["<|pad|>", "<|user|>", "<|answer|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('<|answer|>' if message.role == 'assistant' else '<|user|>') + message.content }}"
    "{% if message.role == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|answer|>' }}{% endif %}"
)


def letters():
    """The letter of each byte in byte-level vocabularies: itself where it is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(0x100 + hidden.index(byte)) for byte in range(256)]


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **plain} for i, token in enumerate(SPECIALS)],
        "pre_tokenizer": bytes_,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(SPECIALS + letters())}, "merges": []},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD, "chat_template": TEMPLATE}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")


main(Path(sys.argv[1]))
