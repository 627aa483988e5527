"""What accelerators can do at most: bytes and operations per second, memory, links.

Required: figures of data sheets, dense rates without sparsity. They are ceilings; how much of them an engine reaches is
`EngineConstants`'. Sources are named per row; where two disagree the one that measured is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relevo.core.errors import StartError
from relevo.policy.perf.weight_formats import WeightFormat

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    memory_bytes: float  # that a process sees
    read_bytes_per_s: float
    bf16_flops: float  # a multiply-add is two
    fp8_flops: float = 0.0  # 0: multiplied in bfloat16
    fp4_flops: float = 0.0  # 0: as fp8
    link_bytes_per_s: float  # to a device of the same domain, one way
    num_link_devices: int = 8  # in such a domain
    sums_in_switch: bool = False  # the links' switch adds (NVLink SHARP): each value crosses a link once
    network_bytes_per_s: float = 0.0  # to other machines, one way, per device

    def flops(self, weight_format: WeightFormat) -> float:
        """Of products with weights of that format. Weights that the unit cannot take are expanded to bfloat16."""
        if weight_format in (WeightFormat.FP8, WeightFormat.FP8_BLOCK, WeightFormat.INT8):
            return self.fp8_flops or self.bf16_flops
        if weight_format in (WeightFormat.NVFP4, WeightFormat.MXFP4) and self.fp4_flops:
            return self.fp4_flops
        return self.bf16_flops


# GPU data sheets as AIConfigurator's system files have them (Apache-2.0), unless said otherwise.
_DEVICES = (
    Device(
        name="a100",
        memory_bytes=80 * _GIB,
        read_bytes_per_s=2.039e12,
        bf16_flops=312e12,
        link_bytes_per_s=300e9,
        network_bytes_per_s=25e9,
    ),
    Device(  # an A100 whose NVLink has 400 GB/s in both directions together
        name="a800",
        memory_bytes=80 * _GIB,
        read_bytes_per_s=2.039e12,
        bf16_flops=312e12,
        link_bytes_per_s=200e9,
        network_bytes_per_s=25e9,
    ),
    Device(
        name="h100",
        memory_bytes=79.6 * _GIB,  # measured: what CUDA shows of 80
        read_bytes_per_s=3.35e12,
        bf16_flops=989e12,
        fp8_flops=1979e12,
        link_bytes_per_s=450e9,
        sums_in_switch=True,
        network_bytes_per_s=50e9,
    ),
    Device(
        name="h200",
        memory_bytes=139 * _GIB,  # measured; the sheet says 141 GB
        read_bytes_per_s=4.8e12,
        bf16_flops=989e12,
        fp8_flops=1979e12,
        link_bytes_per_s=450e9,
        sums_in_switch=True,
        network_bytes_per_s=50e9,
    ),
    Device(  # InferSim, Apache-2.0
        name="h20",
        memory_bytes=96e9,
        read_bytes_per_s=4.0e12,
        bf16_flops=148e12,
        fp8_flops=296e12,
        link_bytes_per_s=450e9,
        network_bytes_per_s=50e9,
    ),
    Device(
        name="b200",
        memory_bytes=180 * _GIB,
        read_bytes_per_s=7.7e12,
        bf16_flops=2250e12,
        fp8_flops=4500e12,
        fp4_flops=9000e12,
        link_bytes_per_s=900e9,
        sums_in_switch=True,
        network_bytes_per_s=100e9,
    ),
    Device(
        name="b300",
        memory_bytes=275_040 * 2**20,
        read_bytes_per_s=7.75e12,
        bf16_flops=2250e12,
        fp8_flops=4500e12,
        fp4_flops=14000e12,
        link_bytes_per_s=900e9,
        sums_in_switch=True,
        network_bytes_per_s=100e9,
    ),
    Device(
        name="gb200",
        memory_bytes=189_471 * 2**20,
        read_bytes_per_s=8.0e12,
        bf16_flops=2500e12,
        fp8_flops=5000e12,
        fp4_flops=10000e12,
        link_bytes_per_s=900e9,
        num_link_devices=72,
        sums_in_switch=True,
        network_bytes_per_s=100e9,
    ),
    Device(
        name="gb300",
        memory_bytes=284_208 * 2**20,
        read_bytes_per_s=8.0e12,
        bf16_flops=2500e12,
        fp8_flops=5000e12,
        fp4_flops=15000e12,
        link_bytes_per_s=900e9,
        num_link_devices=72,
        sums_in_switch=True,
        network_bytes_per_s=100e9,
    ),
    Device(
        name="l40s",
        memory_bytes=46_068 * 2**20,
        read_bytes_per_s=0.864e12,
        bf16_flops=362e12,
        fp8_flops=733e12,
        link_bytes_per_s=32e9,
        network_bytes_per_s=25e9,
    ),
    Device(  # NVIDIA's data sheet, Blackwell workstation edition
        name="rtxpro6000",
        memory_bytes=96e9,
        read_bytes_per_s=1.792e12,
        bf16_flops=504e12,
        fp8_flops=1008e12,
        fp4_flops=2015e12,
        link_bytes_per_s=64e9,
        network_bytes_per_s=25e9,
    ),
    Device(  # NVIDIA's data sheet; sums in float32
        name="rtx4090",
        memory_bytes=24e9,
        read_bytes_per_s=1.008e12,
        bf16_flops=165e12,
        fp8_flops=330e12,
        link_bytes_per_s=32e9,
        network_bytes_per_s=12.5e9,
    ),
    Device(  # AMD's data sheet
        name="mi300x",
        memory_bytes=192e9,
        read_bytes_per_s=5.3e12,
        bf16_flops=1307e12,
        fp8_flops=2615e12,
        link_bytes_per_s=448e9,
        network_bytes_per_s=50e9,
    ),
)

DEVICES: Mapping[str, Device] = {device.name: device for device in _DEVICES}


def device(name: str) -> Device:
    """By name, also as tools write it ("h100_sxm", "A100-80GB"). Raises StartError."""
    plain = name.lower().replace("-", "_").split("_")[0]
    found = DEVICES.get(plain)
    if found is None:
        raise StartError(f"no figures of device {name!r}; known are {', '.join(DEVICES)}")
    return found
