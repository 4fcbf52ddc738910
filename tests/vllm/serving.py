"""Small models, and what a server answers with them."""
import gc
import os
import sys
from pathlib import Path

# The engine in this process: a test takes ten seconds and not a minute. test_in_processes.py has it as it is.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
PROMPTS = [[1, 2, 3, 4], [400, 17, 300]]


def save_model(folder, *, shard_size="1GB", tied=False):
    """A Llama of two layers with weights that make its answers depend on all of them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=512, max_position_embeddings=256, tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return Path(folder)


def answers(folder, load_format, **options):
    """[(token, log-probabilities of the likeliest)] for each prompt, by an engine that is gone afterwards.

    float32, since the CPU of a test machine may lack what vLLM's bfloat16 needs.
    """
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    options = {"distributed_executor_backend": "uni"} | options
    llm = LLM(str(folder), load_format=load_format, skip_tokenizer_init=True, dtype="float32", seed=0,
              max_model_len=128, enforce_eager=True, **options)
    try:
        prompts = [{"prompt_token_ids": tokens} for tokens in PROMPTS]
        wanted = SamplingParams(detokenize=False, temperature=0, max_tokens=8, ignore_eos=True, logprobs=4)
        replies = [reply.outputs[0] for reply in llm.generate(prompts, wanted, use_tqdm=False)]
        return [
            [(token, {number: entry.logprob for number, entry in step.items()})
             for token, step in zip(reply.token_ids, reply.logprobs, strict=True)]
            for reply in replies
        ]
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def main(folder, size, output, *load_formats):
    """Servers of `size` worker processes, one after the other; their answers go to a file."""
    found = {
        load_format: answers(folder, load_format, tensor_parallel_size=int(size),
                             distributed_executor_backend="mp")
        for load_format in load_formats
    }
    Path(output).write_text(repr(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
