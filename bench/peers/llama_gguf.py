"""A Llama of a looped model's shape as GGUF, with random weights: what llama.cpp is timed with. Written by PyPI's gguf."""

import gguf
import numpy

TYPES = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "Q4_0": gguf.GGMLQuantizationType.Q4_0, "BF16": gguf.GGMLQuantizationType.BF16}


def write_llama(path, config, kind):
    """`config`: the looped model's config.json. One pass over the Llama's layers is one recurrence of its."""
    random = numpy.random.default_rng(0)
    hidden, feed, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys, vocab = config["num_attention_heads"] * head, config["num_key_value_heads"] * head, config["vocab_size"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("random")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(feed)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    # A vocabulary that means nothing: llama.cpp wants bytes and three special tokens.
    special = ["<unk>", "<s>", "</s>"]
    tokens = (special + [f"<0x{byte:02X}>" for byte in range(256)] + [f"t{i}" for i in range(vocab)])[:vocab]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    kinds = (kinds + [gguf.TokenType.NORMAL] * vocab)[:vocab]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    made = {}  # by shape: matrices of one shape have the same numbers, which changes no time and is written quicker

    def matrix(name, rows, columns):
        if (rows, columns) not in made:
            values = random.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
            made[rows, columns] = gguf.quants.quantize(values, TYPES[kind])
        writer.add_tensor(name, made[rows, columns], raw_dtype=TYPES[kind])

    def ones(name):
        writer.add_tensor(name, numpy.ones(hidden, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, hidden)
    matrix("output.weight", vocab, hidden)
    ones("output_norm.weight")
    for layer in range(config["num_hidden_layers"]):
        ones(f"blk.{layer}.attn_norm.weight")
        ones(f"blk.{layer}.ffn_norm.weight")
        for name, rows, columns in (("attn_q", queries, hidden), ("attn_k", keys, hidden), ("attn_v", keys, hidden), ("attn_output", hidden, queries),
                                    ("ffn_gate", feed, hidden), ("ffn_up", feed, hidden), ("ffn_down", hidden, feed)):
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
