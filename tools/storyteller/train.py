"""Train one model on one GPU; resumes from its checkpoint when that exists.

The learning signal is the next token or, with --teacher, the mean of the teachers'
distributions over it: 13M tokens are too few for 8M parameters to learn from the bare tokens
without learning them by heart. Every batch mixes windows of the running text with rows of
conversations; the share of conversations grows from --chat-first to --chat-last over the run.
fp32 master weights, bf16 autocast: the matrix products see weights rounded to bf16 from the
first step on, as the exported model has them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model import SHAPES, Llama
from prepare import LOSS_BIT, ROW

IGNORE = -100


class Data:
    """Token files on the device, and batches drawn from them."""

    def __init__(self, folder: Path, device: str, seed: int) -> None:
        def load(file: str) -> Tensor:
            return torch.from_numpy(np.fromfile(folder / file, np.uint16).astype(np.int32)).to(device)

        self.text, self.chat = load("text.train.bin"), load("chat.train.bin").view(-1, ROW)
        held = load("text.held.bin")
        self.held = {"text": held[:len(held) // ROW * ROW].view(-1, ROW) | LOSS_BIT,
                     "chat": load("chat.held.bin").view(-1, ROW)}
        self.device = device
        self.random = torch.Generator().manual_seed(seed)

    def batch(self, rows: int, chat_share: float) -> tuple[Tensor, Tensor]:
        """Inputs and targets [rows, ROW - 1]; targets that do not count are IGNORE."""
        n_chat = round(rows * chat_share)
        starts = torch.randint(len(self.text) - ROW, (rows - n_chat, 1), generator=self.random)
        picks = torch.randint(len(self.chat), (n_chat,), generator=self.random)
        windows = self.text[(starts + torch.arange(ROW)).to(self.device)]
        return split(torch.cat((windows | LOSS_BIT, self.chat[picks.to(self.device)])))


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    ids = (rows & (LOSS_BIT - 1)).long()
    return ids[:, :-1], torch.where(rows[:, 1:] >= LOSS_BIT, ids[:, 1:], IGNORE)


def objective(model: Llama, teachers: list[Llama], ids: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of the counted targets against the token or against the teachers."""
    logits, targets = model(ids).float().flatten(0, 1), targets.flatten()
    if not teachers:
        return F.cross_entropy(logits, targets, ignore_index=IGNORE)
    with torch.no_grad():
        goals = [F.softmax(teacher(ids).float().flatten(0, 1), dim=-1) for teacher in teachers]
    loss = F.cross_entropy(logits, sum(goals) / len(goals), reduction="none")
    counted = targets != IGNORE
    return (loss * counted).sum() / counted.sum()


@torch.no_grad()
def held_out(model: Llama, rows: Tensor, device: str) -> float:
    """Mean cross entropy per counted token over all held-out rows."""
    model.eval()
    total, count = 0.0, 0
    for part in rows.split(32):
        ids, targets = split(part)
        with torch.autocast(device, torch.bfloat16):
            logits = model(ids)
        total += F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(),
                                 ignore_index=IGNORE, reduction="sum").item()
        count += int((targets != IGNORE).sum())
    model.train()
    return total / count


def rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    warmup = 200
    if step < warmup:
        return peak * (step + 1) / warmup
    phase = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, phase))))


def arguments() -> argparse.Namespace:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--data", type=Path, required=True)
    args.add_argument("--checkpoint", type=Path, required=True, help="written at the end, read at the start if there")
    args.add_argument("--log", type=Path, required=True, help="JSON lines, appended")
    args.add_argument("--shape", choices=SHAPES, default="storyteller")
    args.add_argument("--teacher", type=Path, nargs="*", default=[], help="checkpoints of trained teachers")
    args.add_argument("--steps", type=int, required=True, help="length of the whole schedule")
    args.add_argument("--seconds", type=float, default=1e9, help="stop and save after this long")
    args.add_argument("--batch", type=int, default=64, help="rows of 1024 tokens in a step")
    args.add_argument("--peak", type=float, default=2e-3, help="learning rate")
    args.add_argument("--decay", type=float, default=0.1, help="weight decay")
    args.add_argument("--chat-first", type=float, default=0.1)
    args.add_argument("--chat-last", type=float, default=0.35)
    args.add_argument("--every", type=int, default=500, help="steps between held-out measurements")
    args.add_argument("--seed", type=int, default=1)
    return args.parse_args()


def main() -> None:
    began = time.monotonic()
    options = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    model = Llama(SHAPES[options.shape]).to(device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": options.decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=options.peak, betas=(0.9, 0.95), fused=True)
    step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    data = Data(options.data, device, options.seed + step)
    teachers = [Llama(SHAPES["teacher"]).to(device).eval().requires_grad_(False) for _ in options.teacher]
    for teacher, path in zip(teachers, options.teacher):
        teacher.load_state_dict(torch.load(path, map_location=device)["model"])
    compiled = torch.compile(objective)

    logged, clock = step, time.monotonic()
    while step < options.steps and time.monotonic() - began < options.seconds:
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps, options.peak)
        share = options.chat_first + (options.chat_last - options.chat_first) * step / options.steps
        ids, targets = data.batch(options.batch, share)
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(model, teachers, ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % options.every == 0 or step == options.steps:
            train = loss.item()  # waits for the device, so the clock below is honest
            speed = (step - logged) * options.batch * (ROW - 1) / (time.monotonic() - clock)
            entry = {"step": step, "train": round(train, 4), "tokens_per_s": round(speed)}
            entry |= {f"held_{k}": round(held_out(model, v, device), 4) for k, v in data.held.items()}
            with open(options.log, "a") as log:
                log.write(json.dumps(entry) + "\n")
            print(entry, flush=True)
            logged, clock = step, time.monotonic()
        elif step % 20 == 0:
            loss.item()  # keeps the host from running far ahead of --seconds
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "shape": options.shape}, options.checkpoint)
    print(f"saved {options.checkpoint} at step {step} of {options.steps}")


if __name__ == "__main__":
    main()
