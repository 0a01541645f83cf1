"""Makes model_smollm2.json: what Hugging Face transformers answers in float32 on the weights of the test model.

Usage: model_smollm2.py MODEL.gguf OUT.json

The GGUF weights are dequantised by gguf-py and loaded into transformers' LlamaForCausalLM; the script first
verifies that transformers' own GGUF import gives the very same tensors, so that an error in either (block
formats, the permutation of Q and K for RoPE, RoPE base) cannot hide. Needs torch, transformers, accelerate, gguf, jinja2.
"""

import json
import pathlib
import sys
import time

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 64
TOP = 32
FIXED_STEP = 1531  # ids FIXED_STEP * k: spread over the vocabulary, not chosen by any model

SYSTEM = "You are a careful assistant. Answer briefly."
HERE = pathlib.Path(__file__).resolve().parent


def chat(*turns, system=None):
    roles = ["user", "assistant"]
    messages = [{"role": "system", "content": system}] if system else []
    return messages + [{"role": roles[i % 2], "content": t} for i, t in enumerate(turns)]


# name, prompt: a string is raw text, a list is a conversation.
PROMPTS = [
    ("chat-capital", chat("What is the capital of France?")),
    ("chat-system", chat("Name three primary colours.", system=SYSTEM)),
    ("chat-turns", chat("My cat is called Mieze.", "That is a lovely name for a cat.", "What is my cat called?")),
    ("chat-code", chat("Write a Python function that reverses a linked list, with a short explanation.")),
    ("chat-story", chat("Tell me a short story about a lighthouse keeper who was afraid of the dark.")),
    ("chat-german", chat("Erkläre in zwei Sätzen, warum der Himmel blau ist.")),
    ("chat-empty-system", [{"role": "system", "content": ""}, {"role": "user", "content": "Hello!"}]),
    ("chat-list", chat("List the planets of the solar system in order, one a line, with their number of moons.")),
    ("raw-prose", "The old bridge had carried carts, then trams, and now nothing but people, who"),
    ("raw-one-token", "The"),
    ("raw-python", "def fibonacci(n: int) -> list[int]:\n    \"\"\"Return the first n Fibonacci numbers.\"\"\"\n"),
    ("raw-cpp", "#include <vector>\n\ntemplate <typename T>\nT sum(const std::vector<T>& values) {\n  "),
    ("raw-json", '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "papers": [{"title": '),
    ("raw-numbers", "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144,"),
    ("raw-arithmetic", "12 + 7 = 19\n35 + 48 = 83\n126 + 250 = 376\n1024 + 4096 ="),
    ("raw-cyrillic", "Москва стоит на реке, которая называется так же, как и город. Зимой"),
    ("raw-greek", "Η θάλασσα ήταν ήρεμη εκείνο το πρωί και οι ψαράδες"),
    ("raw-arabic", "كانت المدينة هادئة في الصباح الباكر، ثم"),
    ("raw-hindi", "सुबह का समय था और बाज़ार में"),
    ("raw-chinese", "春天来了，河边的柳树"),
    ("raw-japanese", "朝早く起きて、窓を開けると、"),
    ("raw-korean", "아침 일찍 시장에 가면"),
    ("raw-mixed", "Café ☕ – naïve façade, 50 € ≈ $54.30; π ≈ 3.14159… 🙂🚀\t\tend\r\n\r\n"),
    ("raw-long", None),  # the first 1,500 tokens of the perplexity text
]


def gguf_state_dict(path, config):
    """Hugging Face's tensors from gguf-py's dequantised ones."""
    layer_names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    state = {}
    for tensor in GGUFReader(path).tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if tensor.name == "token_embd.weight":
            state["model.embed_tokens.weight"] = values
            state["lm_head.weight"] = values
        elif tensor.name == "output_norm.weight":
            state["model.norm.weight"] = values
        else:
            _, layer, part, _ = tensor.name.split(".")
            if part in ("attn_q", "attn_k"):
                # Rows of a head lie (pair, half) in GGUF and (half, pair) in Hugging Face's NeoX order.
                heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
                rows, cols = values.shape
                values = values.reshape(heads, rows // heads // 2, 2, cols).transpose(1, 2).reshape(rows, cols)
            state[f"model.layers.{layer}.{layer_names[part]}.weight"] = values
    return state


def load(path):
    folder, name = str(pathlib.Path(path).parent), pathlib.Path(path).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    rope = getattr(model.config, "rope_parameters", None) or {"rope_theta": model.config.rope_theta}
    assert rope["rope_theta"] == 100000.0, rope
    assert abs(model.config.rms_norm_eps - 1e-5) < 1e-9, model.config.rms_norm_eps
    expected = gguf_state_dict(path, model.config)
    actual = model.state_dict()
    assert set(actual) == set(expected), set(actual) ^ set(expected)
    for key, values in expected.items():
        assert torch.equal(actual[key], values), key
    print(f"{len(expected)} tensors equal gguf-py's, RoPE {rope}", flush=True)
    return tokenizer, model


def rounded(values, digits):
    return [round(float(v), digits) for v in values]


@torch.inference_mode()
def greedy(model, ids):
    """64 tokens without stopping at EOS; logits of the first step; the smallest lead of a chosen token."""
    tokens, first, gaps, cache = [], None, [], None
    step = torch.tensor([ids])
    for _ in range(NEW_TOKENS):
        out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        logits = out.logits[0, -1]
        first = logits if first is None else first
        best = torch.topk(logits, 2)
        gaps.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        step = best.indices[:1].reshape(1, 1)
    return tokens, first, gaps


@torch.inference_mode()
def text_nll(model, ids):
    """Negative log-likelihood of each token after the first, natural log."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    return -logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def main(path, out_path):
    torch.set_num_threads(1)  # a busy machine makes threads wait for each other
    tokenizer, model = load(path)
    text = (HERE / "model_text.txt").read_text(encoding="utf-8")
    text_ids = tokenizer.encode(text, add_special_tokens=False)
    print("perplexity text:", len(text_ids), "tokens", flush=True)

    prompts = []
    for name, prompt in PROMPTS:
        start = time.time()
        if prompt is None:
            ids = text_ids[:1500]
            shown = "the first 1500 tokens of text_ids"
        elif isinstance(prompt, str):
            ids = tokenizer.encode(prompt, add_special_tokens=False)
            shown = prompt
        else:
            rendered = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            ids = tokenizer.encode(rendered, add_special_tokens=False)
            shown = prompt
        tokens, first, gaps = greedy(model, ids)
        top = torch.topk(first, TOP)
        fixed = [FIXED_STEP * k for k in range(TOP)]
        prompts.append({
            "name": name, "prompt": shown, "ids": ids if prompt is not None else [], "greedy": tokens,
            "text": tokenizer.decode(tokens),
            "top_ids": top.indices.tolist(), "top_logits": rounded(top.values, 5),
            "fixed_logits": rounded(first[fixed], 5),
            "gaps": rounded(gaps, 4), "smallest_gap": round(min(gaps), 6),
        })
        print(f"{name}: {len(ids)} ids, smallest gap {min(gaps):.5f}, {time.time() - start:.1f} s: "
              f"{tokenizer.decode(tokens)[:60]!r}", flush=True)

    nll = text_nll(model, text_ids)
    golden = {
        "model": pathlib.Path(path).name,
        "about": "Made by model_smollm2.py: transformers LlamaForCausalLM, float32, on the dequantised weights. "
                 "fixed_logits are those of ids fixed_step * k; gaps: best minus second logit of each greedy step; "
                 "the prompt raw-long is the first 1500 of text_ids.",
        "fixed_step": FIXED_STEP,
        "prompts": prompts,
        "text_ids": text_ids,
        "text_mean_nll": round(float(nll.mean()), 6),
        "text_perplexity": round(float(nll.mean().exp()), 5),
        "text_nll": rounded(nll, 4),
    }
    pathlib.Path(out_path).write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n",
                                      encoding="utf-8")
    print("perplexity", golden["text_perplexity"], "size", pathlib.Path(out_path).stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
