"""GPUs for tests of the planner."""

from planner.cluster import Gpu

# An A100 with 80 GB and a network card of its own, as in the published table.
A100 = Gpu(
    name="a100",
    flops_per_s=312e12 * 0.8,
    memory_bytes=80e9,
    memory_bytes_per_s=2039e9,
    link_bytes_per_s=299e9,
    network_bytes_per_s=18.75e9,
)

# A V100 with 16 GB, as in nodes of a cloud with a fast network.
V100 = Gpu(
    name="v100",
    flops_per_s=125e12 * 0.75,
    memory_bytes=16e9,
    memory_bytes_per_s=900e9,
    link_bytes_per_s=130e9,
    network_bytes_per_s=3e9,
)
