"""Runs A and G with Hugging Face transformers and PEFT, for a comparison in the same call.

    python benches/peers/hf_lora.py reward              # Mistral-7B reward model, LoRA r16, dropout 0.1, 8 x 512
    python benches/peers/hf_lora.py reward --checkpoint
    python benches/peers/hf_lora.py sft                 # Qwen2.5-1.5B, LoRA r8, dropout 0.1, 4 x 2048

Random weights and tokens, bf16, AdamW over the adapters, median of eight updates after three. Prints tokens per second,
the allocator's peak and what the driver says is in use on the card. Needs a GPU, torch, transformers and peft.
"""

import argparse
import statistics
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForSequenceClassification, Qwen2Config, Qwen2ForCausalLM

RUNS = {"reward": (8, 512, 16), "sft": (4, 2048, 8)}


def model_of(run):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if run == "reward":
            config = MistralConfig(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                   num_attention_heads=32, num_key_value_heads=8, num_labels=1, pad_token_id=0,
                                   sliding_window=None, use_cache=False)
            return MistralForSequenceClassification(config)
        config = Qwen2Config(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                             num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False)
        return Qwen2ForCausalLM(config)


def loss_of(run, model, tokens):
    if run == "sft":
        return model(input_ids=tokens, labels=tokens).loss
    scores = model(input_ids=tokens).logits[:, 0].float()
    return -torch.nn.functional.logsigmoid(scores[0::2] - scores[1::2]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--checkpoint", action="store_true", help="recompute every block")
    options = parser.parse_args()
    sequences, length, rank = RUNS[options.run]
    model = model_of(options.run)
    lora = LoraConfig(r=rank, lora_alpha=32, lora_dropout=0.1, target_modules="all-linear",
                      task_type="SEQ_CLS" if options.run == "reward" else "CAUSAL_LM")
    model = get_peft_model(model, lora)
    if options.checkpoint:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5)
    tokens = torch.randint(1, 31999, (sequences, length), device="cuda")
    times = []
    for _ in range(11):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss_of(options.run, model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[3:])
    free, total = torch.cuda.mem_get_info()
    print(f"{options.run}{' checkpointing' if options.checkpoint else ''}: {sequences * length / seconds:.0f} tok/s, "
          f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB allocated, {(total - free) / 1e9:.1f} GB on card")


if __name__ == "__main__":
    main()
