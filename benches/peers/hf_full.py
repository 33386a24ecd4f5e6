"""Runs E and F with Hugging Face transformers, all parameters trained, for a comparison in the same call.

    python benches/peers/hf_full.py t5 --compile          # E: T5 of 10 + 10 layers, dim 768, 32 x 256 on both sides
    python benches/peers/hf_full.py nanochat --compile    # F: nanochat of 16 layers, dim 1024, 8 x 2048

Random weights and tokens, bf16, fused AdamW, no clipping, median of eight updates after three. --compile is torch.compile
with fixed shapes, --checkpoint recomputes every block. Prints tokens per second (of both sides), the allocator's peak and
what the driver says is in use on the card. Needs a GPU, torch and transformers.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, NanoChatConfig, T5Config

from hf_lora import DEVICE, TIMED, WARM_UP, report

# (sequences, length, sides)
SHAPES = {"t5": (32, 256, 2), "nanochat": (8, 2048, 1)}


def model_of(run):
    if run == "t5":
        config = T5Config(vocab_size=29298, d_model=768, d_ff=3072, d_kv=64, num_layers=10, num_decoder_layers=10, num_heads=12,
                          feed_forward_proj="gelu", dropout_rate=0.0, tie_word_embeddings=True, use_cache=False,
                          decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
        kind = AutoModelForSeq2SeqLM
    else:
        config = NanoChatConfig(vocab_size=65536, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16,
                                num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048, use_cache=False)
        kind = AutoModelForCausalLM
    config._attn_implementation = "sdpa"
    with torch.device(DEVICE):
        return config.vocab_size, kind.from_config(config, dtype=torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", choices=SHAPES)
    parser.add_argument("--compile", action="store_true", help="torch.compile with fixed shapes")
    parser.add_argument("--checkpoint", action="store_true", help="recompute every block")
    options = parser.parse_args()
    sequences, length, sides = SHAPES[options.run]
    words, model = model_of(options.run)
    if options.checkpoint:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    forward = torch.compile(model, dynamic=False) if options.compile else model
    drawn = lambda: torch.randint(3, words, (sequences, length), device=DEVICE)
    times = []
    for _ in range(WARM_UP + TIMED):
        tokens, labels = drawn(), drawn()
        torch.cuda.synchronize()
        began = time.perf_counter()
        if options.run == "t5":
            loss = forward(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels).loss
        else:
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    details = [options.run, "compiled" if options.compile else "", "checkpointing" if options.checkpoint else ""]
    report(" ".join(filter(None, details)), sides * sequences * length, statistics.median(times[WARM_UP:]))


if __name__ == "__main__":
    main()
