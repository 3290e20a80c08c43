"""The training that the models share: the optimisers, the loop, the folder, the command line."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from probe.model.find import EMBEDDED_FOLDER
from training import wordpieces

# The model that each package trains.
MODELS = {
    "causal": "tiny-senses",
    "bidirectional": "tiny-senses-bidirectional",
    "translator": "tiny-translator",
}
THREADS = 1
# Of Muon and of AdamW.
RATES = (0.02, 3e-3)
WARM_UP = 100
# The number of seeds for the parts of a training text, so that two runs with different seeds share none.
PARTS = 1_000_000
IGNORED = -100

Row = TypeVar("Row", list[int], tuple[list[int], list[int]])


def optimizers(
    model: nn.Module, *, blocks: tuple[str, ...], rates: tuple[float, float]
) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the blocks, AdamW for embeddings, biases and LayerNorms: half as many steps as with AdamW
    alone.
    """
    matrices = [
        p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith(blocks)
    ]
    matrix_ids = {id(p) for p in matrices}
    other_parameters = [p for p in model.parameters() if id(p) not in matrix_ids]
    return (
        torch.optim.Muon(matrices, lr=rates[0], weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(other_parameters, lr=rates[1], betas=(0.9, 0.98), weight_decay=0.0),
    )


def descend(
    model: nn.Module,
    step_loss: Callable[[int], Tensor],
    *,
    steps: int,
    blocks: tuple[str, ...],
    rates: tuple[float, float] = RATES,
) -> Iterator[float]:
    """Train in place; yield the loss of every step.

    blocks: the beginnings of the names of the blocks' parameters
    rates: of Muon and of AdamW; they rise for WARM_UP steps and fall linearly to a fiftieth
    """
    both = optimizers(model, blocks=blocks, rates=rates)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - 0.98 * step / steps)
        )
        for optimizer in both
    ]
    model.train()
    for step in range(steps):
        loss = step_loss(step)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(both, schedules, strict=True):
            optimizer.step()
            schedule.step()
        yield loss.item()
    model.eval()


def grouped(
    rows: Iterable[Row], *, limit: int, size: Callable[[Row], int] = len
) -> list[list[Row]]:
    """Groups of rows of about the same size.

    limit: the largest number of tokens of a group after padding
    """
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=size):
        if groups[-1] and size(row) * (len(groups[-1]) + 1) > limit:
            groups.append([])
        groups[-1].append(row)
    return groups


def padded(rows: list[list[int]], fill: int) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def prepare() -> float:
    """Set one thread and deterministic algorithms; return the processor time at the start, in seconds."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    return time.process_time()


def follow(losses: Iterable[float], *, steps: int, started: float) -> float:
    """Run all steps with a line on standard error every 100 steps; return the minutes of processor time since
    `started`.
    """
    running = 0.0
    for step, loss in enumerate(losses, start=1):
        running = loss if step == 1 else 0.98 * running + 0.02 * loss
        if step % 100 == 0:
            minutes = (time.process_time() - started) / 60
            sys.stderr.write(f"step {step} of {steps}, loss {running:.3f}, {minutes:.1f} minutes\n")
    return (time.process_time() - started) / 60


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the weights, the config and the tokenizer."""
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    wordpieces.save(tokenizer, out)


def save_card(text: str, out: Path) -> None:
    """Write the card into the folder of the weights and to standard output."""
    (out / "card.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def run(
    train: Callable[..., None], arguments: list[str] | None, *, kind: str, seed: int, steps: int
) -> None:
    """The command line of one training script. The defaults are the options of the model that ships."""
    parser = argparse.ArgumentParser(
        prog=f"python -m training.{kind}.train", description=train.__doc__
    )
    parser.add_argument(
        "--out", type=Path, default=EMBEDDED_FOLDER / MODELS[kind], help="the folder to write"
    )
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--steps", type=int, default=steps)
    options = parser.parse_args(arguments)
    train(options.out, seed=options.seed, steps=options.steps)
