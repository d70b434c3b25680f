"""A tiny model trained by the Trainer of Transformers on all ranks of a job, as docs/distributed.md says."""

import json
import os
import sys
import time
from typing import Any

import torch
import transformers

from gavel.training.huggingface import LeaseCallback

RANK = int(os.environ["RANK"])


class Slow(transformers.TrainerCallback):
    """Prints where this attempt starts, and makes steps slow enough to be preempted."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer before the first step."""
        print(json.dumps({"at": "start", "rank": RANK, "step": state.global_step}) + "\n", end="", flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer before every step."""
        time.sleep(0.02)


transformers.set_seed(3)
config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
model = transformers.GPT2LMHeadModel(config)
rows = torch.randint(0, 32, (400, 8), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in rows]
lease = LeaseCallback("out")
arguments = transformers.TrainingArguments(
    output_dir=lease.output_dir,
    max_steps=int(sys.argv[-1]),
    per_device_train_batch_size=4,
    use_cpu=True,
    ddp_backend="gloo",
    report_to=[],
    disable_tqdm=True,
    save_strategy="no",
)
trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Slow(), lease])
# It prints its figures as Python writes a dict, which is not JSON.
trainer.remove_callback(transformers.PrinterCallback)
trainer.train(resume_from_checkpoint=lease.resume_from)
print(json.dumps({"at": "end", "rank": RANK, "step": trainer.state.global_step}) + "\n", end="", flush=True)
