"""The head of a GGUF file reads back as another implementation wrote it, and a damaged one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.gguf_metadata import read_head, read_metadata

VALUES = {
    "t.u8": ("add_uint8", 200),
    "t.i8": ("add_int8", -100),
    "t.u16": ("add_uint16", 60000),
    "t.i16": ("add_int16", -30000),
    "t.u32": ("add_uint32", 4_000_000_000),
    "t.i32": ("add_int32", -2_000_000_000),
    "t.u64": ("add_uint64", 2**63 + 1),
    "t.i64": ("add_int64", -(2**62)),
    "t.f32": ("add_float32", 0.5),
    "t.f64": ("add_float64", 0.1),
    "t.bool": ("add_bool", True),
    "t.text": ("add_string", "héllo ▁中"),
    "t.texts": ("add_array", ["a", "", "Ġthe", "\U0001f600"]),
    "t.ints": ("add_array", [1, -2, 3]),
    "t.floats": ("add_array", [0.5, -1.25]),
    "t.nested": ("add_array", [[1, 2], [3]]),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (method, value) in VALUES.items():
        getattr(writer, method)(key, value)
    writer.add_tensor("norm", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.arange(6, dtype=np.float16).reshape(2, 3))
    quantised = gguf.quants.quantize(np.ones((3, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_of_value(file: Path) -> None:
    metadata = read_metadata(file)
    assert {key: metadata[key] for key in VALUES} == {key: value for key, (_, value) in VALUES.items()}


def test_keys_that_are_not_wanted_are_passed_over(file: Path) -> None:
    """Turns red when what is skipped has another length than what is read."""
    head = read_head(file)
    for without in ("t.", "t.n", "t.texts", "t.u8", "t.floats"):
        kept = read_head(file, without=without)
        assert kept.metadata == {key: value for key, value in head.metadata.items() if not key.startswith(without)}
        assert kept.tensors == head.tensors


def test_tensors_lie_where_they_were_written(file: Path) -> None:
    tensors = read_head(file).tensors
    data = file.read_bytes()
    norm, matrix, quantised = tensors["norm"], tensors["matrix"], tensors["quantised"]
    assert np.array_equal(np.frombuffer(data, np.float32, 5, norm.offset), np.arange(5))
    assert (matrix.shape, matrix.type_name, matrix.num_bytes) == ((2, 3), "F16", 12)
    assert np.array_equal(np.frombuffer(data, np.float16, 6, matrix.offset), np.arange(6))
    assert (quantised.shape, quantised.type_name, quantised.num_bytes) == ((3, 64), "Q8_0", 3 * 2 * 34)


def test_every_shorter_file_is_refused(file: Path, tmp_path: Path) -> None:
    """Turns red when any length or count of the format is trusted without a check."""
    data = file.read_bytes()
    last = max(read_head(file).tensors.values(), key=lambda tensor: tensor.offset)
    assert last.num_bytes is not None
    cut = tmp_path / "cut.gguf"
    for num_bytes in range(0, last.offset + last.num_bytes, 7):
        cut.write_bytes(data[:num_bytes])
        for without in (None, "t."):
            with pytest.raises(ModelFileError, match=r"cut\.gguf"):
                read_head(cut, without=without)


@pytest.mark.parametrize(
    "data",
    [
        b"GGML" + bytes(100),
        b"GGUF" + struct.pack("<I", 1) + bytes(100),
        b"GGUF" + struct.pack(">I", 3) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 6, 2**61) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<IB", 0, 1),
    ],
)
def test_nonsense_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "nonsense.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"nonsense\.gguf"):
        read_head(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read .*absent\.gguf"):
        read_head(tmp_path / "absent.gguf")
