"""Writes dequantise_golden.json: random stored blocks of every type and their values by the gguf package.

Usage: python make_dequantise_golden.py > dequantise_golden.json    (needs numpy and gguf)
"""
import json
import sys

import gguf
import numpy as np

# Type -> byte offsets of its f16 scales, which must be ordinary numbers; all other bytes are arbitrary.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "F16": None, "BF16": None}

rng = np.random.default_rng(20240229)
cases = []
for name, scales in SCALES.items():
    kind = getattr(gguf.GGMLQuantizationType, name)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = 64 if scales is None else max(2, 256 // elements)
    stored = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    if scales is None:  # finite values, subnormals among them
        values = rng.normal(size=blocks) * 10.0 ** rng.uniform(-7, 3, blocks)
        stored = (values.astype(np.float16).view(np.uint8) if name == "F16"
                  else (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
        stored = stored.reshape(blocks, 2)
    else:
        for at in scales:
            stored[:, at:at + 2] = rng.normal(0, 0.05, (blocks, 1)).astype(np.float16).view(np.uint8)
    values = gguf.dequantize(stored.reshape(1, -1), kind).astype(np.float32).reshape(-1)
    cases.append({"type": name, "stored": stored.tobytes().hex(), "values": values.tobytes().hex()})
json.dump({"generator": "make_dequantise_golden.py", "cases": cases}, sys.stdout, indent=1)
print()
