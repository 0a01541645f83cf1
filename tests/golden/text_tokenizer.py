#!/usr/bin/env python3
"""Writes text_tokenizer_<name>.json: what Hugging Face `tokenizers` makes of 2 MB of mixed text.

The text comes from text_tokenizer_seed.json by the mixer below, which text_corpus.h repeats. A golden holds, for each
chunk, the number of ids and a hash after every 64 ids (and after the last), so that a test can name the first block
that differs; `--show NAME CHUNK` then prints the reference ids. Other arguments: only these goldens.

Needs the packages tokenizers, transformers, sentencepiece and gguf, and the files of tools/assets.txt and
tools/test_assets.txt in the cache folder.
"""

import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tenon")
MASK = (1 << 64) - 1
CHUNKS, CHUNK_BYTES, BLOCK = 512, 4096, 64
RANGES = [(0x0, 0x20), (0x7F, 0x22), (0xA0, 0x160), (0x2B0, 0xD0), (0x370, 0x1490), (0x2000, 0x70), (0x2070, 0xF90),
          (0x3000, 0x100), (0xA000, 0x3800), (0xE000, 0x2000), (0x10000, 0x2000), (0x1D100, 0x3000)]


class Corpus:
    def __init__(self):
        with open(os.path.join(HERE, "text_tokenizer_seed.json"), encoding="utf-8") as file:
            self.seed = json.load(file)
        self.state = 2024

    def below(self, limit):  # splitmix64
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % limit

    def pick(self, name):
        items = self.seed[name]
        return items[self.below(len(items))]

    def item(self):
        kind = self.below(16)
        if kind < 8:
            text = self.pick("prose")
        elif kind < 10:
            text = self.pick("code")
        elif kind < 12:
            text = self.pick("other")
        elif kind == 12:
            text = "".join(str(self.below(10)) for _ in range(1 + self.below(20)))
        elif kind == 13:
            first, size = RANGES[self.below(12)]
            text = "".join(chr(first + self.below(size)) for _ in range(1 + self.below(12)))
        elif kind == 14:
            text = self.pick("prose")
            begin = self.below(len(text))
            text = text[begin : begin + self.below(len(text) - begin)]
        else:
            text = bytes(self.below(256) for _ in range(64)).decode("utf-8", "ignore")
        return text + self.pick("separators")

    def chunks(self):
        result = []
        for _ in range(CHUNKS):
            parts, size = [], 0
            while size < CHUNK_BYTES:
                parts.append(self.item())
                size += len(parts[-1].encode())
            result.append("".join(parts))
        return result


def smollm2():
    """The Hugging Face form of SmolLM2's tokenizer, over the vocabulary and merges of the GGUF file."""
    from gguf import GGUFReader

    reader = GGUFReader(os.path.join(CACHE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def asset(name):
    return os.path.join(CACHE, "test_assets", name)


def llama3():
    return Tokenizer.from_file(asset("llama3/tokenizer.json"))


def llama3_nfc():
    tokenizer = llama3()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def deepseek():
    return Tokenizer.from_file(asset("deepseek/tokenizer.json"))


def mistral(legacy):
    """Mistral 7B's SentencePiece model as Hugging Face converts it: merges from scores, a mark in front."""
    from sentencepiece import SentencePieceProcessor
    from transformers.tokenization_utils_base import generate_merges

    model = SentencePieceProcessor(model_file=asset("mistral/tokenizer.model"))
    vocab = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    special = [piece for piece, i in vocab.items() if model.is_unknown(i) or model.is_control(i)]
    merges = generate_merges(vocab, {piece: model.get_score(i) for piece, i in vocab.items()}, special)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


TOKENIZERS = {
    "smollm2": smollm2,
    "llama3": llama3,
    "llama3_nfc": llama3_nfc,
    "deepseek": deepseek,
    "mistral": lambda: mistral(legacy=True),
    "mistral_metaspace": lambda: mistral(legacy=False),
}


def hashes(ids):
    """FNV-1a over the ids' bytes; 24 bits of it after every BLOCK ids and after the last."""
    value, out = 0xCBF29CE484222325, []
    for i, token in enumerate(ids):
        for byte in token.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & MASK
        if (i + 1) % BLOCK == 0 or i + 1 == len(ids):
            out.append("%06x" % (value & 0xFFFFFF))
    return "".join(out)


def main():
    chunks = Corpus().chunks()
    if len(sys.argv) == 4 and sys.argv[1] == "--show":
        print(TOKENIZERS[sys.argv[2]]().encode(chunks[int(sys.argv[3])], add_special_tokens=False).ids)
        return
    for name, make in TOKENIZERS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        tokenizer = make()
        rows = []
        for chunk in chunks:
            ids = tokenizer.encode(chunk, add_special_tokens=False).ids
            rows.append([len(ids), hashes(ids)])
        with open(os.path.join(HERE, f"text_tokenizer_{name}.json"), "w", encoding="utf-8") as file:
            file.write('{"text_bytes": %d, "chunks": [\n' % sum(len(c.encode()) for c in chunks))
            file.write(",\n".join(json.dumps(row) for row in rows) + "\n]}\n")
        print(name, sum(row[0] for row in rows))


if __name__ == "__main__":
    main()
