#!/usr/bin/env python3
"""Writes data/rope.json: the frequencies that PyPI transformers computes for configs with scaled rotary embeddings.

    pip install torch transformers==5.* && python3 tests/model/make_rope_data.py

Each case is a rope_parameters object as transformers 5 writes it; the test reads it in that form and in the older one
(rope_theta and rope_scaling beside each other).
"""
import json
import pathlib

import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    (128, 131072, {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0}),
    (96, 4096, {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.5}),
    (64, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    (128, 65536, {"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 8.0, "low_freq_factor": 2.0,
                  "high_freq_factor": 8.0, "original_max_position_embeddings": 4096}),
    (128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                   "original_max_position_embeddings": 32768}),
    (128, 262144, {"rope_type": "yarn", "rope_theta": 70000000.0, "factor": 16.0,
                   "original_max_position_embeddings": 16384, "beta_fast": 48.0, "beta_slow": 2.0}),
    (64, 163840, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0,
                  "original_max_position_embeddings": 4096}),
    (64, 131072, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False,
                  "attention_factor": 1.25, "original_max_position_embeddings": 4096}),
    (16, 8192, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 1.0, "original_max_position_embeddings": 8192}),
]


def main():
    cases = []
    for head_dim, positions, parameters in CASES:
        config = LlamaConfig(head_dim=head_dim, hidden_size=4 * head_dim, num_attention_heads=4,
                             max_position_embeddings=positions, rope_parameters=dict(parameters))
        frequencies, attention_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        cases.append({"head_dim": head_dim, "max_position_embeddings": positions, "rope_parameters": parameters,
                      "attention_factor": attention_factor, "frequencies": frequencies.double().tolist()})
    data = {"made_by": f"transformers {transformers.__version__}, modeling_rope_utils.py", "cases": cases}
    out = pathlib.Path(__file__).parent / "data" / "rope.json"
    out.write_text(json.dumps(data, separators=(",", ":")).replace('{"head_dim"', '\n{"head_dim"') + "\n")


if __name__ == "__main__":
    main()
