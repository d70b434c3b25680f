"""A tiny model trained by Lightning on all ranks of a job, as docs/distributed.md says."""

import json
import os
import sys
import time
from typing import Any

import lightning
import torch

from gavel.training import ResumableSampler
from gavel.training.lightning import LeaseCallback


class Line(lightning.LightningModule):
    """A line that is fitted slowly enough to be preempted."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def on_train_start(self) -> None:
        """Print where this attempt starts."""
        print(
            json.dumps({"at": "start", "rank": self.global_rank, "step": self.global_step}) + "\n",
            end="",
            flush=True,
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        time.sleep(0.02)
        return self.line(batch.float().unsqueeze(1)).pow(2).mean()

    def configure_optimizers(self) -> Any:
        """An optimizer with a state."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


data = list(range(400))
sampler = ResumableSampler(data, seed=1)
lease = LeaseCallback("checkpoints", sampler=sampler)
local = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = lightning.Trainer(
    max_steps=int(sys.argv[-1]),
    callbacks=[lease],
    accelerator="cpu",
    devices=local,
    num_nodes=int(os.environ["WORLD_SIZE"]) // local,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
)
model = Line()
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
trainer.fit(model, loader, ckpt_path=lease.resume_from, weights_only=True)
print(
    json.dumps({"at": "end", "rank": trainer.global_rank, "step": trainer.global_step}) + "\n",
    end="",
    flush=True,
)
