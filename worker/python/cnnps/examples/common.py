"""Code that all examples use: the command line, and training with plain PyTorch for comparison
(--plain)."""
import argparse
import json
import math
import os
import time
from typing import Any, Dict, Mapping

import torch
from torch.utils.data import DataLoader, TensorDataset

import cnnps.torch
from cnnps.torch import Loss, Metric


def arguments(what: str, data: str, **defaults: Any) -> argparse.Namespace:
    """Parses the command line. `what` describes the program, and `data` is the help text of --data;
    `defaults` are the default values of the other options."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--data", help=data)
    parser.add_argument("--plain", action="store_true", help="train with PyTorch alone")
    for name in ("epochs", "batch_size", "samples", "tests"):
        value = defaults[name]
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value,
                            help=f"(default {value})")
    return parser.parse_args()


def _evaluate(model: torch.nn.Module, loss: Loss, test: TensorDataset,
              metrics: Mapping[str, Metric]) -> Dict[str, float]:
    model.eval()
    sums = dict.fromkeys(["loss", *metrics], 0.0)
    with torch.no_grad():
        for *inputs, target in DataLoader(test, 256):
            output = model(*inputs)
            sums["loss"] += float(loss(output, target)) * len(target)
            for name, metric in metrics.items():
                sums[name] += float(metric(output, target))
    return {name: value / len(test) for name, value in sums.items()}


def _plain(model: torch.nn.Module, loss: Loss, data: TensorDataset, options: argparse.Namespace,
           lr: float, onecycle: bool) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    updates = options.epochs * math.ceil(len(data) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=updates, cycle_momentum=False) if onecycle else None
    model.train()
    for _ in range(options.epochs):
        for *inputs, target in DataLoader(data, options.batch_size, shuffle=True):
            optimizer.zero_grad()
            loss(model(*inputs), target).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if schedule:
                schedule.step()


def compare(name: str, model: torch.nn.Module, loss: Loss, data: TensorDataset,
            test: TensorDataset, options: argparse.Namespace,
            metrics: Mapping[str, Metric], adam_lr: float, **server: Any) -> None:
    """Trains, and prints one line with the loss and the metrics of the trained model on all test
    samples, and the time of the training. `server` are options of cnn-ps. With --plain, PyTorch's
    Adam trains with the learning rate `adam_lr` and the same schedule."""
    begin = time.monotonic()
    if options.plain:
        _plain(model, loss, data, options, adam_lr, server.get("schedule") == "onecycle")
    else:
        cnnps.torch.train(model, loss, data, eval_dataset=test, metrics=metrics, dataset_id=name,
                          epochs=options.epochs, batch_size=options.batch_size, **server)
    seconds = time.monotonic() - begin
    if os.environ.get("RANK", "0") == "0":  # under cnnps.run, only the first worker prints the line
        found = {key: round(value, 4) for key, value in
                 _evaluate(model, loss, test, metrics).items()}
        print(json.dumps({"example": name, "with": "PyTorch" if options.plain else "cnn-ps",
                          "epochs": options.epochs, **found, "seconds": round(seconds, 2)}))
