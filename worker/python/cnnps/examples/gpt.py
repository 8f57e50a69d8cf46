"""A toy GPT that predicts the next byte of a text.

    python -m cnnps.run --workers 4 -m cnnps.examples.gpt --data book.txt
    python -m cnnps.examples.gpt --plain

The example shows a metric other than accuracy: the cross entropy in bits per byte.
"""
import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from cnnps.examples.common import arguments, compare

CONTEXT, WIDTH, HEADS, LAYERS, SYMBOLS = 48, 64, 4, 2, 128
TEXT = "/usr/share/common-licenses/GPL-3"  # a text that every Debian system has


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)
        self.register_buffer("numbers", torch.arange(CONTEXT))
        self.register_buffer("future", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.symbols(text) + self.places(self.numbers)
        symbols: torch.Tensor = self.head(self.norm(self.layers(x, self.future)))
        return symbols


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.reshape(-1, SYMBOLS), target.reshape(-1))


def bits(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return loss(output, target) * len(target) / math.log(2)


def main() -> None:
    options = arguments((__doc__ or "").splitlines()[0], f"file with a text (default {TEXT})",
                        epochs=5, batch_size=8, samples=1000000, tests=200)
    try:
        raw = Path(options.data or TEXT).read_bytes()
    except FileNotFoundError as why:
        sys.exit(f"gpt: {why}; choose a file with --data")
    text = torch.tensor(list(raw)).clamp(max=SYMBOLS - 1)
    windows = text.unfold(0, CONTEXT + 1, CONTEXT // 4)
    # no byte of the text is in both the training set and the test set
    train, test = (TensorDataset(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in (
        windows[:-options.tests - 4][:options.samples], windows[-options.tests:]))
    torch.manual_seed(1)
    # Stale gradients have a similar effect to momentum, so the server's Adam runs with beta1 = 0.
    compare("gpt", GPT(), loss, train, test, options, {"bits": bits}, adam_lr=0.003,
            optimizer="adam", beta1=0.0, lr=0.003, lr_scaling="none")


if __name__ == "__main__":
    main()
