#!/usr/bin/env python3
"""Weights of few bits against the libraries that define the formats: what `loopspec quantize` writes, read back by PyPI
compressed-tensors; files in MLX's layout; GGUF files made by PyPI gguf. Dequantised weights must be equal, bit for bit.

Exit code 77: the libraries cannot be had here."""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

PACKAGES = ["numpy", "safetensors", "gguf", "torch", "compressed-tensors"]


def environment(venv):
    """Restarts in a virtual environment that has the libraries, made when it is not there."""
    python = venv / "bin/python"
    if pathlib.Path(sys.prefix).resolve() == venv.resolve():
        return
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
        if made.returncode != 0:
            sys.exit(77)
    test = [str(python), "-c", "import numpy, safetensors, gguf, torch, compressed_tensors"]
    if subprocess.run(test, check=False, capture_output=True).returncode != 0:
        install = subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=False)
        if install.returncode != 0:
            print("skipped: the PyPI libraries cannot be installed")
            sys.exit(77)
    sys.exit(subprocess.run([str(python), *sys.argv], check=False).returncode)


def dump(driver, model, folder):
    """All matrices of a model as our reader dequantises them."""
    from safetensors.numpy import load_file
    out = folder / "dump.safetensors"
    subprocess.run([driver, str(model), str(out)], check=True)
    return load_file(out)


def ouro_roles(layers):
    """Our role -> the released name."""
    roles = {"embedding": "model.embed_tokens", "head.0": "lm_head"}
    for i in range(layers):
        at = f"model.layers.{i}."
        for p, name in enumerate("qkv"):
            roles[f"core.{i}.qkv.{p}"] = f"{at}self_attn.{name}_proj"
        roles[f"core.{i}.attn_out.0"] = f"{at}self_attn.o_proj"
        roles[f"core.{i}.gate_up.0"] = f"{at}mlp.gate_proj"
        roles[f"core.{i}.gate_up.1"] = f"{at}mlp.up_proj"
        roles[f"core.{i}.down.0"] = f"{at}mlp.down_proj"
    return roles


def expect_equal(ours, expected, what):
    import numpy as np
    assert set(expected) <= set(ours), sorted(set(expected) - set(ours))
    values = 0
    for name, value in expected.items():
        assert ours[name].shape == value.shape, (what, name, ours[name].shape, value.shape)
        assert np.array_equal(ours[name], value), f"{what}: {name} differs, by {np.abs(ours[name] - value).max()} at most"
        values += value.size
    print(f"{what}: {len(expected)} matrices, {values} weights equal")


def compare_compressed_tensors(args, work):
    import torch
    from compressed_tensors.compressors import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from safetensors.torch import load_file
    for bits in (8, 4):
        folder = work / f"int{bits}"
        subprocess.run([args.driver, "--quantize", str(bits), f"{args.source}/models/ouro-demo", str(folder)], check=True)
        config = json.loads((folder / "config.json").read_text())
        scheme = QuantizationConfig.model_validate(config["quantization_config"]).config_groups["group_0"].weights
        assert isinstance(scheme, QuantizationArgs) and scheme.num_bits == bits and scheme.symmetric
        tensors = load_file(folder / "model.safetensors")
        expected = {}
        for role, name in ouro_roles(config["num_hidden_layers"]).items():
            if name + ".weight_scale" not in tensors:
                continue
            scale = tensors[name + ".weight_scale"].float()
            if bits == 4:
                shape = torch.Size(tensors[name + ".weight_shape"].tolist())
                codes = unpack_from_int32(tensors[name + ".weight_packed"], bits, shape)
            else:
                codes = tensors[name + ".weight"]
            expected[role] = dequantize(codes, scale, args=scheme, dtype=torch.float32).numpy()
        assert len(expected) == 7 * config["num_hidden_layers"] + 1
        expect_equal(dump(args.driver, folder, work), expected, f"compressed-tensors int{bits}")


def compare_compressed_variants(args, work):
    """Files made by the library itself: zero points, groups, one scale per output, 8 bits in words."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file, save_file
    source = pathlib.Path(args.source) / "models/ouro-demo"
    tensors = load_file(source / "model.safetensors")
    for kind, bits, group, symmetric in (("int-quantized", 8, 0, False), ("int-quantized", 8, 64, True),
                                         ("pack-quantized", 8, 0, False), ("pack-quantized", 4, 0, True),
                                         ("pack-quantized", 4, 32, False), ("pack-quantized", 4, 128, True)):
        what = f"compressed-tensors {kind}, {bits} bit, {'groups of ' + str(group) if group else 'one scale per output'}" + (
            "" if symmetric else ", zero points")
        scheme = QuantizationScheme(targets=["Linear"], format=kind, weights=QuantizationArgs(
            num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel", group_size=group or None))
        compressor = BaseCompressor.get_value_from_registry(kind)
        config = json.loads((source / "config.json").read_text())
        config["tie_word_embeddings"] = False
        config["quantization_config"] = QuantizationConfig(
            config_groups={"group_0": scheme}, format=kind, quantization_status="compressed").model_dump(mode="json")
        config["quantization_config"]["quant_method"] = "compressed-tensors"
        folder = work / f"variant-{kind}-{bits}-{group}-{symmetric}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        names = {name: role for role, name in ouro_roles(config["num_hidden_layers"]).items() if role != "embedding"}
        out, expected = {}, {}
        for name, value in {**tensors, "lm_head.weight": tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])}.items():
            stem = name.removesuffix(".weight")
            if stem not in names:
                out[name] = value
                continue
            w = value.float()
            pieces = w.reshape(w.shape[0], -1, group or w.shape[1])
            scale, zero = calculate_qparams(pieces.amin(-1), pieces.amax(-1), scheme.weights)
            state = {"weight": w, "weight_scale": scale}
            if not symmetric:
                state["weight_zero_point"] = zero.to(torch.int8)
            state = compressor.compress(state, scheme)
            for part, tensor in state.items():
                out[f"{stem}.{part}"] = tensor.contiguous()
            expected[names[stem]] = compressor.decompress(state, scheme)["weight"].float().numpy()
        save_file(out, folder / "model.safetensors")
        expect_equal(dump(args.driver, folder, work), expected, what)


def compare_mlx(args, work):
    """MLX's affine layout, from its documentation: w = scale * q + bias, 32 / bits numbers to a word, the first lowest."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    source = pathlib.Path(args.source) / "models/ouro-demo"
    for bits, group in ((4, 64), (8, 32)):
        folder = work / f"mlx{bits}"
        folder.mkdir()
        config = json.loads((source / "config.json").read_text())
        config["quantization"] = {"group_size": group, "bits": bits, "mode": "affine"}
        (folder / "config.json").write_text(json.dumps(config))
        names = {name + ".weight": role for role, name in ouro_roles(config["num_hidden_layers"]).items()}
        out, expected = {}, {}
        for name, value in load_file(source / "model.safetensors").items():
            if name not in names:
                out[name] = value
                continue
            w = value.float().reshape(value.shape[0], -1, group)
            low, high = w.min(-1).values, w.max(-1).values
            scale = ((high - low) / (2**bits - 1)).clamp(min=1e-7).bfloat16()
            bias = low.bfloat16()
            q = ((w - bias.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 2**bits - 1)
            words = q.to(torch.int64).reshape(value.shape[0], -1, 32 // bits)
            packed = (words << (torch.arange(32 // bits) * bits)).sum(-1).numpy().astype(np.uint32)
            stem = name[: -len(".weight")]
            out[name] = torch.from_numpy(packed.view(np.int32)).view(torch.uint32)
            out[stem + ".scales"], out[stem + ".biases"] = scale, bias
            # Rounded once, as a fused multiply-add does it: exact in double.
            exact = scale.double()[..., None] * q.double() + bias.double()[..., None]
            expected[names[name]] = exact.reshape(value.shape).float().numpy()
        if "lm_head.weight" not in out:
            expected["head.0"] = expected["embedding"]
        save_file(out, folder / "model.safetensors")
        expect_equal(dump(args.driver, folder, work), expected, f"MLX {bits} bit")


def compare_gguf(args, work):
    import gguf
    import numpy as np
    from safetensors.torch import load_file
    rng = np.random.default_rng(0)
    layers, hidden, ff, heads, kv_heads, head_dim, vocab = 2, 256, 512, 4, 2, 64, 96
    types = gguf.GGMLQuantizationType
    blocks = {types.Q8_0: (32, 34), types.Q4_0: (32, 18), types.Q4_K: (256, 144), types.Q6_K: (256, 210)}
    for kind in (types.F32, types.F16, types.BF16, types.Q8_0, types.Q4_0, types.Q4_K, types.Q6_K):
        path = work / f"{kind.name}.gguf"
        writer = gguf.GGUFWriter(path, "ouro")
        for key, value in (("embedding_length", hidden), ("feed_forward_length", ff), ("block_count", layers),
                           ("attention.head_count", heads), ("attention.head_count_kv", kv_heads),
                           ("attention.key_length", head_dim), ("context_length", 128), ("num_loops", 3)):
            writer.add_uint32(f"ouro.{key}", value)
        writer.add_float32("ouro.attention.layer_norm_rms_epsilon", 1e-6)
        writer.add_float32("ouro.rope.freq_base", 10000.0)
        expected = {}

        def matrix(name, role, rows, columns, dim=0):
            values = (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)
            if kind in (types.Q4_K, types.Q6_K):  # the library only reads these: any bytes, with sensible scales
                size, length = blocks[kind]
                data = rng.integers(0, 256, (rows, columns // size, length), dtype=np.uint8)
                halves = rng.uniform(0.001, 0.01, (rows, columns // size, 2)).astype(np.float16).view(np.uint8)
                if kind == types.Q4_K:
                    data[..., 0:4] = halves
                else:
                    data[..., 208:210] = halves[..., :2]
                data = data.reshape(rows, -1)
            else:
                data = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            plain = gguf.quants.dequantize(data, kind).reshape(rows, columns)
            if dim:  # the file's rows 2i and 2i + 1 of a head are i and i + dim / 2
                plain = plain.reshape(rows // dim, dim // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
            expected[role] = np.ascontiguousarray(plain, dtype=np.float32)

        matrix("token_embd.weight", "embedding", vocab, hidden)
        matrix("output.weight", "head.0", vocab, hidden)
        writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
        for i in range(layers):
            matrix(f"blk.{i}.attn_q.weight", f"core.{i}.qkv.0", heads * head_dim, hidden, head_dim)
            matrix(f"blk.{i}.attn_k.weight", f"core.{i}.qkv.1", kv_heads * head_dim, hidden, head_dim)
            matrix(f"blk.{i}.attn_v.weight", f"core.{i}.qkv.2", kv_heads * head_dim, hidden)
            matrix(f"blk.{i}.attn_output.weight", f"core.{i}.attn_out.0", hidden, heads * head_dim)
            matrix(f"blk.{i}.ffn_gate.weight", f"core.{i}.gate_up.0", ff, hidden)
            matrix(f"blk.{i}.ffn_up.weight", f"core.{i}.gate_up.1", ff, hidden)
            matrix(f"blk.{i}.ffn_down.weight", f"core.{i}.down.0", hidden, ff)
            for norm in ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm"):
                writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(hidden, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        expect_equal(dump(args.driver, path, work), expected, f"GGUF {kind.name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--only", default="compressed_tensors,compressed_variants,mlx,gguf")
    args = parser.parse_args()
    environment(args.venv)
    work = pathlib.Path(tempfile.mkdtemp(prefix="quantized-"))
    try:
        for name in args.only.split(","):
            globals()[f"compare_{name}"](args, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
