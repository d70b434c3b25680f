"""The figures behind the default throughput table. docs/throughputs.md states where they come from.

Worker types follow data sheets and public price lists. For models, parameter counts and arithmetic come from papers;
memory traffic and activations are estimates. The tables on that page are made from these figures; if they differ, a
test fails and says how to update the page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerType:
    """A type of accelerator: its speed, its links to others, and its price in USD.

    `peak_tflops` is for dense 16-bit arithmetic with 32-bit sums (for a CPU: 32 bit), and `sustained` is the fraction
    of this peak that clocks and power allow under load. `bandwidth_gb_per_s` is the bandwidth of the memory;
    `kernel_s` is the least time from one kernel to the next. `link_gb_per_s` is what one GPU can send in an all-reduce
    to the other GPUs of its node; `network_gb_per_s` is one GPU's part of what its node can send to other nodes.
    """

    name: str
    peak_tflops: float
    sustained: float
    bandwidth_gb_per_s: float
    memory_gb: float
    kernel_s: float
    link_gb_per_s: float
    network_gb_per_s: float
    price_per_gpu_hour: float


@dataclass(frozen=True, slots=True)
class Model:
    """Training one model with one batch size per GPU; a step is one batch on one GPU, forward and backward.

    `traffic_gb_per_sample` goes to and from the accelerator's memory; `state_gb` is the size of weights, gradients and
    optimizer state. `exchanged_gb` is the size of the gradients that the GPUs sum up in each step. `efficiency` is the
    fraction of the sustained arithmetic that the tensor shapes of this model reach. Each step starts `kernels` kernels,
    and needs `host_s` seconds of work by the host, such as decoding images or running environments.
    """

    name: str
    batch: int
    gflop_per_sample: float
    traffic_gb_per_sample: float
    activations_gb_per_sample: float
    state_gb: float
    exchanged_gb: float
    efficiency: float
    kernels: int
    host_s: float


# name, peak, sustained, bandwidth, memory, kernel, link, network, price
WORKER_TYPES = (
    WorkerType("t4", 65, 0.50, 320, 16, 8e-6, 8, 3, 0.5),
    WorkerType("l4", 121, 0.55, 300, 24, 6e-6, 12, 3, 0.8),
    WorkerType("v100", 125, 0.75, 900, 16, 7e-6, 100, 3, 3.1),
    WorkerType("a100", 312, 0.80, 2039, 80, 5e-6, 230, 6, 3.4),
    WorkerType("h100", 989, 0.55, 3350, 80, 4e-6, 340, 40, 6.9),
    WorkerType("h200", 989, 0.55, 4800, 141, 4e-6, 340, 40, 7.9),
    WorkerType("cpu", 3, 0.60, 150, 128, 1e-6, 1.5, 1.5, 1.5),
)

# name, batch, GFLOP, traffic GB, activations GB, state GB, exchanged GB, efficiency, kernels, host s
MODELS = (
    Model("resnet50", 64, 24.6, 0.50, 0.10, 0.41, 0.051, 0.45, 1_000, 0.012),
    Model("resnet152", 32, 69.0, 1.10, 0.22, 0.96, 0.120, 0.45, 2_800, 0.006),
    Model("vit-b16", 64, 106, 0.60, 0.12, 1.4, 0.172, 0.55, 1_100, 0.012),
    Model("unet-diffusion", 2, 3_400, 6.0, 2.0, 14.8, 1.72, 0.45, 6_000, 0.004),
    Model("bert-base", 32, 87.0, 0.35, 0.06, 1.8, 0.220, 0.45, 1_400, 0.002),
    Model("bert-large", 8, 1_090, 3.0, 0.90, 5.4, 0.680, 0.45, 2_600, 0.002),
    Model("t5-base", 16, 600, 2.2, 0.55, 3.6, 0.446, 0.35, 3_000, 0.002),
    Model("gpt2-124m", 8, 870, 3.4, 1.0, 2.0, 0.248, 0.55, 1_300, 0.002),
    Model("gpt2-1.5b", 2, 10_500, 26.0, 4.0, 25.0, 3.12, 0.50, 5_000, 0.002),
    Model("llama-7b-lora", 2, 27_500, 45.0, 2.0, 14.1, 0.080, 0.45, 5_500, 0.002),
    Model("wav2vec2", 8, 730, 4.0, 0.60, 1.5, 0.190, 0.30, 1_800, 0.020),
    Model("dlrm", 8_192, 0.006, 0.0006, 0.00001, 11.0, 0.220, 0.30, 400, 0.0015),
    Model("lstm-lm", 64, 2.7, 0.020, 0.004, 0.6, 0.075, 0.30, 4_500, 0.001),
    Model("ppo-games", 256, 0.08, 0.0006, 0.0002, 0.1, 0.007, 0.20, 400, 0.180),
)
