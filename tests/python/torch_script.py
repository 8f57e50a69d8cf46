"""In the tests, cnnps.run starts this script: torch_script.py SECONDS-PER-BATCH DIRECTORY [KEY]"""
import os
import sys
import time
from pathlib import Path

import torch

import cnnps.torch

pause, directory = float(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
x = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def loss(output, target):
    time.sleep(pause)
    return torch.nn.functional.cross_entropy(output, target)


(directory / f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))
model = torch.nn.Linear(20, 2)
cnnps.torch.train(model, loss, data, metrics={"accuracy": cnnps.torch.accuracy}, epochs=3,
                  batch_size=10, optimizer="adam", lr=0.01, key=sys.argv[3] if sys.argv[3:] else None)
