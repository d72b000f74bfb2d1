"""Writes tests/golden/int4/int4.safetensors: small matrices of four-bit codes as checkpoints have
them, with the weights that the libraries of their formats make of them.

    make_int4_golden.py AUTOAWQ GPTQMODEL OUT

AUTOAWQ and GPTQMODEL are unpacked source archives of these packages (0.2.9 and 7.7.0 made the
fixture), from which single functions are taken: importing the packages wants a GPU's libraries.
compressed-tensors (0.20.0), torch and safetensors are imported. Codes, zero points and scales are
random, among them zero points of 0 and 15; each case has its tensors under "<case>." as a
checkpoint has them, and "<case>.weight" [N, K] in the scales' format.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

N, K = 16, 256


def take(path: Path, names: list[str], scope: dict) -> SimpleNamespace:
    """Functions of a source file, by name, with `scope` as their globals."""
    tree = ast.parse(path.read_text())
    wanted = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    for f in wanted:
        f.decorator_list, f.returns = [], None
        for a in f.args.args:
            a.annotation = None
    exec(compile(ast.Module(body=wanted, type_ignores=[]), str(path), "exec"), scope)
    return SimpleNamespace(**{n: scope[n] for n in names})


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def scales(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(rows, cols) * 0.02 + 0.001).to(dtype)


def gptq(root: Path, version: int, group: int) -> dict:
    class Layer(SimpleNamespace):
        planar, bits, maxq, pack_factor, in_features = False, 4, 15, 8, K
        dequant_dtype = torch.int8

        def qzero_format(self, format: int) -> None:
            assert format == 2

        def _init_wf_unsqueeze_buffers(self) -> None:
            wf = torch.arange(0, 32, 4, dtype=torch.int32).unsqueeze(0)
            self.wf_unsqueeze_zero = wf.unsqueeze(0)
            self.wf_unsqueeze_neg_one = wf.unsqueeze(-1)

    log = SimpleNamespace(info=SimpleNamespace(once=print))
    source = root / "gptqmodel/nn_modules/qlinear/__init__.py"
    names = ["dequantize_weight", "_dequantize_from_codes", "_torch_right_shift"]
    lib = take(source, names, {"t": torch})
    convert = take(root / "gptqmodel/utils/model.py", ["convert_gptq_v1_to_v2_format_module"],
                   {"torch": torch, "log": log, "BaseQuantLinear": Layer})
    Layer.dequantize_weight = lib.dequantize_weight
    Layer._dequantize_from_codes = lib._dequantize_from_codes
    file = {
        "qweight": words(K // 8, N),
        "qzeros": words(K // group, N // 8),
        "scales": scales(K // group, N, torch.float16),
        "g_idx": torch.arange(K, dtype=torch.int32) // group,
    }
    layer = Layer(**{k: v.clone() for k, v in file.items()})
    if version == 1:
        convert.convert_gptq_v1_to_v2_format_module(layer, 4, torch.int32)
    return {**file, "weight": layer.dequantize_weight().t()}


def awq(root: Path, group: int) -> dict:
    order = {"torch": torch}
    source = root / "awq/utils/packing_utils.py"
    exec(compile(source.read_text(), str(source), "exec"), order)
    file = {
        "qweight": words(K, N // 8),
        "qzeros": words(K // group, N // 8),
        "scales": scales(K // group, N, torch.float16),
    }
    weight = order["dequantize_gemm"](file["qweight"], file["qzeros"], file["scales"], 4, group)
    return {**file, "weight": weight.t()}


def packed(group: int, symmetric: bool, dtype: torch.dtype, n: int) -> dict:
    strategy = {"strategy": "group", "group_size": group} if group < K else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, **strategy)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight_scale": scales(n, K // group, dtype)}
    if not symmetric:
        state["weight_zero_point"] = torch.randint(-8, 8, (n, K // group), dtype=torch.int8)
    state["weight"] = torch.randn(n, K).to(dtype) * 0.05
    file = PackedQuantizationCompressor.compress(state, scheme)
    return {**file, "weight": PackedQuantizationCompressor.decompress(file, scheme)["weight"]}


def main() -> None:
    autoawq, gptqmodel, out = (Path(p) for p in sys.argv[1:])
    torch.manual_seed(4)
    cases = {
        "gptq_128": gptq(gptqmodel, 1, 128),
        "gptq_32": gptq(gptqmodel, 1, 32),
        "gptq_v2_64": gptq(gptqmodel, 2, 64),
        "gptq_v2_256": gptq(gptqmodel, 2, 256),
        "awq_128": awq(autoawq, 128),
        "awq_32": awq(autoawq, 32),
        "packed_128": packed(128, False, torch.bfloat16, 13),
        "packed_32": packed(32, False, torch.float16, 9),
        "packed_sym_128": packed(128, True, torch.bfloat16, 8),
        "packed_sym_256": packed(256, True, torch.float16, 11),
    }
    tensors = {f"{c}.{k}": v.contiguous() for c, f in cases.items() for k, v in f.items()}
    save_file(tensors, out)


if __name__ == "__main__":
    main()
