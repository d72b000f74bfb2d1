#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Streams an answer with the Python package and stops it on the way.

    python3 generate.py [MODEL [PROMPT [MAX_BYTES]]]

MODEL: a path, a name like Qwen/Qwen3-0.6B, or "-" for the bundled one. The package comes with the wheel (`make
wheel`, `pip install`); `make wheel` also leaves it in build/python, for PYTHONPATH."""
import sys

from sluice import LLM, SluiceError


def main() -> int:
    args = sys.argv[1:] + ["-", "Once upon a time", str(sys.maxsize)][len(sys.argv) - 1:]
    written, cut = 0, False
    try:
        with LLM(None if args[0] == "-" else args[0], device="cpu", max_num_seqs=1) as llm:
            params = llm.get_default_sampling_params()
            params.temperature, params.max_tokens = 0, 32
            with llm.stream(args[1], params) as pieces:
                for text in pieces:
                    written += sys.stdout.buffer.write(text.encode())
                    sys.stdout.buffer.flush()
                    if written >= int(args[2]):
                        cut = True
                        break
    except SluiceError as e:
        print(f"generate: {e}", file=sys.stderr)
        return 1
    print("\ncancelled" if cut else "\nfinished", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
