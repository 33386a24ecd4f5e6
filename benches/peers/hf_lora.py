"""Runs A, B, D and G with Hugging Face transformers and PEFT, for a comparison in the same call.

    python benches/peers/hf_lora.py reward              # A: Mistral-7B reward model, LoRA r16, dropout 0.1, 8 x 512
    python benches/peers/hf_lora.py sft7b               # B: Mistral-7B SFT, LoRA r16, dropout 0, 4 x 2048
    python benches/peers/hf_lora.py full                # D: Mistral-7B reward model, all parameters, 2 x 384
    python benches/peers/hf_lora.py sft                 # G: Qwen2.5-1.5B SFT, LoRA r8, dropout 0.1, 4 x 2048

With --liger, Liger's kernels take the place of transformers' (its fused loss included; pip install liger-kernel, or its
unpacked wheel on PYTHONPATH); --checkpoint recomputes every block; --dropout P is the adapters'. Random weights and
tokens, bf16, AdamW over what is trained (its states are bf16 where the parameters are), median of eight updates after three.
Prints tokens per second, the allocator's peak and what the driver says is in use on the card. Needs a GPU, torch,
transformers and peft.
"""

import argparse
import statistics
import time
from typing import NamedTuple, Optional

import torch

DEVICE = "cuda"
MISTRAL = dict(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, sliding_window=None, use_cache=False)
QWEN = dict(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
            num_key_value_heads=2, tie_word_embeddings=True, use_cache=False)
WARM_UP, TIMED = 3, 8


class Run(NamedTuple):
    sequences: int
    length: int
    # None: all parameters are trained.
    rank: Optional[int]
    dropout: float
    is_reward: bool
    is_mistral: bool


RUNS = {
    "reward": Run(8, 512, 16, 0.1, is_reward=True, is_mistral=True),
    "sft7b": Run(4, 2048, 16, 0.0, is_reward=False, is_mistral=True),
    "full": Run(2, 384, None, 0.0, is_reward=True, is_mistral=True),
    "sft": Run(4, 2048, 8, 0.1, is_reward=False, is_mistral=False),
}


def apply_liger(run):
    """Must come before the model is made: the kernels replace classes of transformers."""
    from liger_kernel.transformers import apply_liger_kernel_to_mistral, apply_liger_kernel_to_qwen2

    (apply_liger_kernel_to_mistral if run.is_mistral else apply_liger_kernel_to_qwen2)()


def base_model(run):
    from transformers import (MistralConfig, MistralForCausalLM, MistralForSequenceClassification, Qwen2Config,
                              Qwen2ForCausalLM)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        if run.is_reward:
            model = MistralForSequenceClassification(MistralConfig(num_labels=1, pad_token_id=0, **MISTRAL))
        elif run.is_mistral:
            model = MistralForCausalLM(MistralConfig(**MISTRAL))
        else:
            model = Qwen2ForCausalLM(Qwen2Config(**QWEN))
    torch.set_default_dtype(before)
    return model


def with_adapters(run, model, dropout):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=run.rank, lora_alpha=32, lora_dropout=dropout, target_modules="all-linear",
                                            task_type="SEQ_CLS" if run.is_reward else "CAUSAL_LM"))


def loss_of(run, model, tokens):
    if not run.is_reward:
        return model(input_ids=tokens, labels=tokens).loss
    scores = model(input_ids=tokens).logits[:, 0].float()
    return -torch.nn.functional.logsigmoid(scores[0::2] - scores[1::2]).mean()


def median_seconds(loss, trained):
    """Of an update: loss and gradients, clipping, AdamW."""
    optimizer = torch.optim.AdamW(trained, lr=2e-5)
    times = []
    for _ in range(WARM_UP + TIMED):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARM_UP:])


def report(name, tokens, seconds):
    free, total = torch.cuda.mem_get_info()
    print(f"{name}: {tokens / seconds:.0f} tok/s, {1e3 * seconds:.1f} ms, "
          f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB allocated, {(total - free) / 1e9:.1f} GB on card", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--checkpoint", action="store_true", help="recompute every block")
    parser.add_argument("--liger", action="store_true", help="with Liger's kernels")
    parser.add_argument("--dropout", type=float, metavar="P", help="of the adapters; default: the run's")
    options = parser.parse_args()
    run = RUNS[options.run]
    dropout = run.dropout if options.dropout is None else options.dropout
    if options.liger:
        apply_liger(run)
    model = base_model(run)
    if run.rank is not None:
        model = with_adapters(run, model, dropout)
    if options.checkpoint:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    words = MISTRAL["vocab_size"] if run.is_mistral else QWEN["vocab_size"]
    tokens = torch.randint(1, words, (run.sequences, run.length), device=DEVICE)
    seconds = median_seconds(lambda: loss_of(run, model, tokens), trained)
    details = [options.run, "Liger" if options.liger else "", "checkpointing" if options.checkpoint else "",
               "" if run.rank is None else f"dropout {dropout:g}"]
    report(" ".join(filter(None, details)), tokens.numel(), seconds)


if __name__ == "__main__":
    main()
