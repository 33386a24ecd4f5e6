"""Run B with Unsloth, for a comparison in the same call: Mistral-7B SFT, LoRA r16, dropout 0, 4 x 2048.

    python benches/peers/unsloth_lora.py
    python benches/peers/unsloth_lora.py --checkpoint       # with Unsloth's own gradient checkpointing
    python benches/peers/unsloth_lora.py --folder DIR       # keeps the random model there, and finds it the next time

Random weights and tokens, bf16, AdamW over the adapters, median of eight updates after three, as `hf_lora.py` beside this
file, whose clock and report it uses. Unsloth loads models from folders only, so a random one of 14.5 GB is written first.
Needs a GPU, torch, transformers, peft, accelerate, trl, unsloth and unsloth_zoo, and no network. bitsandbytes and xformers
may be missing; so may datasets, pyarrow and pandas, for which empty stand-ins are made: nothing here reads data.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types

RANK, SEQUENCES, LENGTH = 16, 4, 2048
INDEX = "model.safetensors.index.json"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


# What Unsloth and trl take names from as they are imported, with a version that they accept, and its modules.
UNUSED = {
    "datasets": ("4.3.0", ["arrow_dataset", "features", "fingerprint", "iterable_dataset", "utils"]),
    "pyarrow": ("21.0.0", ["compute", "types"]),
    "pandas": ("2.3.3", []),
}
STAND_IN = """__version__ = "{version}"

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return globals().setdefault(name, type(name, (), {{}}))
"""


def stand_in_for_unused(folder):
    """Makes empty packages in place of those that are missing."""
    for package, (version, modules) in UNUSED.items():
        if importlib.util.find_spec(package) is not None:
            continue
        (folder / package).mkdir()
        for module in ["__init__", *modules]:
            (folder / package / f"{module}.py").write_text(STAND_IN.format(version=version))
        about = folder / f"{package}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    sys.path.append(str(folder))


@contextlib.contextmanager
def bitsandbytes_or_stand_in():
    """Loading asks whether layers are in four bits, even where none is."""
    import peft.tuners.lora
    import torch

    if importlib.util.find_spec("bitsandbytes") is not None:
        yield
        return
    four_bits = type("Linear4bit", (torch.nn.Linear,), {})
    names = {"bitsandbytes": {}, "bitsandbytes.nn": {"Linear4bit": four_bits}}
    for name, content in names.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content, __spec__=importlib.machinery.ModuleSpec(name, None), __path__=[])
    peft.tuners.lora.Linear4bit = four_bits
    yield
    for name in names:
        del sys.modules[name]


def write_tokenizer(folder, words):
    """A tokenizer of so many words; no text goes through it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                      pad_token="<unk>", model_max_length=32768)
    wrapped.save_pretrained(folder)


def write_model(folder, shape, device):
    """A random model under transformers' names, layer by layer, so that no second copy of it is held."""
    import torch
    from safetensors.torch import save_file
    from transformers import MistralConfig

    folder.mkdir(parents=True, exist_ok=True)
    config = MistralConfig(architectures=["MistralForCausalLM"], dtype="bfloat16", bos_token_id=1, eos_token_id=2,
                           max_position_embeddings=32768, **shape)
    config.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)
    dim, ffn = config.hidden_size, config.intermediate_size
    kv = dim // config.num_attention_heads * config.num_key_value_heads
    matrix = lambda rows, cols: torch.randn(rows, cols, device=device, dtype=torch.bfloat16).mul_(0.02).cpu()
    ones = lambda: torch.ones(dim, dtype=torch.bfloat16)
    places = {}

    def save(name, tensors):
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    save("outer.safetensors", {"model.embed_tokens.weight": matrix(config.vocab_size, dim), "model.norm.weight": ones(),
                               "lm_head.weight": matrix(config.vocab_size, dim)})
    for layer in range(config.num_hidden_layers):
        shapes = {"self_attn.q_proj": (dim, dim), "self_attn.k_proj": (kv, dim), "self_attn.v_proj": (kv, dim),
                  "self_attn.o_proj": (dim, dim), "mlp.gate_proj": (ffn, dim), "mlp.up_proj": (ffn, dim),
                  "mlp.down_proj": (dim, ffn)}
        tensors = {f"model.layers.{layer}.{name}.weight": matrix(*sizes) for name, sizes in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = ones()
        save(f"layer-{layer}.safetensors", tensors)
    total = sum((folder / name).stat().st_size for name in set(places.values()))
    # Last: a folder with an index is whole.
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index))


def measure(options, scratch):
    stand_in_for_unused(scratch)
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(scratch / "compiled"))
    # Before transformers and peft, which it changes.
    from unsloth import FastLanguageModel

    import torch

    import hf_lora

    folder = options.folder or scratch / "model"
    if not (folder / INDEX).exists():
        write_model(folder, hf_lora.MISTRAL, hf_lora.DEVICE)
    with bitsandbytes_or_stand_in():
        model, _ = FastLanguageModel.from_pretrained(str(folder), max_seq_length=LENGTH, dtype=torch.bfloat16,
                                                     load_in_4bit=False, local_files_only=True)
    checkpointing = "unsloth" if options.checkpoint else False
    model = FastLanguageModel.get_peft_model(model, r=RANK, lora_alpha=32, lora_dropout=0, bias="none",
                                             target_modules=TARGETS, use_gradient_checkpointing=checkpointing)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    tokens = torch.randint(3, hf_lora.MISTRAL["vocab_size"], (SEQUENCES, LENGTH), device=hf_lora.DEVICE)

    def loss():
        # As its trainer does.
        with torch.autocast(hf_lora.DEVICE, dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds = hf_lora.median_seconds(loss, trained)
    hf_lora.report(f"sft7b Unsloth{' checkpointing' if options.checkpoint else ''}", tokens.numel(), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", action="store_true", help="Unsloth's gradient checkpointing")
    parser.add_argument("--folder", type=pathlib.Path, metavar="DIR", help="of the random model; default: a temporary one")
    options = parser.parse_args()
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "UNSLOTH_DISABLE_STATISTICS"):
        os.environ.setdefault(variable, "1")
    with tempfile.TemporaryDirectory() as scratch:
        measure(options, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
