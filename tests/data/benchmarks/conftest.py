"""Writes TFRecord files the other way round from how they are read: messages byte by byte, checksums one at a time."""

from __future__ import annotations

import gzip
import struct

import pytest


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def feature(values: list) -> bytes:
    if values and isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    if values and isinstance(values[0], int):
        return field(3, field(1, b"".join(map(varint, values))))
    return field(1, b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values))


def example(features: dict[str, list]) -> bytes:
    entries = (field(1, field(1, name.encode()) + field(2, feature(values))) for name, values in features.items())
    return field(1, b"".join(entries))


def checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


@pytest.fixture
def proto_field():
    return field


@pytest.fixture
def make_example():
    return example


@pytest.fixture
def frame_record():
    return framed


@pytest.fixture
def write_records():
    def write(path, records: list[dict[str, list]]) -> None:
        path.write_bytes(gzip.compress(b"".join(framed(example(features)) for features in records)))

    return write
