"""Reads GZIP-compressed TFRecord files of tf.Example without TensorFlow.

A record is framed as length (uint64), masked CRC of the length (uint32), data, masked CRC of the data (uint32), all
little-endian (`tensorflow/core/lib/io/record_writer.h`). The messages are declared here field by field, as in
`tensorflow/core/example/feature.proto`, and decoded by the protobuf library.
"""

from __future__ import annotations

import functools
import gzip
import pathlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from gui_owl_jax.agent.errors import DataError

# message -> field -> (number, type); a type is a scalar or a message declared before, "*" stands for repeated.
Declarations = Mapping[str, Mapping[str, tuple[int, str]]]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed
_MASK_DELTA = 0xA282EAD8
_LANE = 1024  # bytes that one lane of the checksum runs over
_FULL = 0xFFFFFFFF


def read_records(path: str | pathlib.Path) -> Iterator[bytes | DataError]:
    """The records of a file, in their order.

    Args:
      path: a TFRecord file, compressed with gzip.

    Yields:
      The data of a record, or a `DataError` in place of one whose checksum is wrong. Where the framing is damaged or
      the file ends early, nothing behind can be read: the error is the last thing yielded.

    Raises:
      DataError: the file cannot be opened.
    """
    try:
        raw = open(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: {error}") from error
    index = 0
    with raw, gzip.GzipFile(fileobj=raw) as file:
        while True:
            where = f"{path}: record {index}"
            try:
                header = file.read(_HEADER.size)
                if not header:
                    return
                length = _length(header, where)
                data, footer = file.read(length), file.read(_FOOTER.size)
                if len(data) < length or len(footer) < _FOOTER.size:
                    raise DataError(f"{where}: the file ends within it")
            except (OSError, EOFError, zlib.error) as error:
                yield DataError(f"{where}: the rest is damaged or not compressed with gzip: {error}")
                return
            except DataError as error:
                yield error
                return
            right = masked_crc(data) == _FOOTER.unpack(footer)[0]
            yield data if right else DataError(f"{where}: its checksum is wrong")
            index += 1


def _length(header: bytes, where: str) -> int:
    if len(header) < _HEADER.size:
        raise DataError(f"{where}: the file ends within it")
    length, checksum = _HEADER.unpack(header)
    if masked_crc(header[:8]) != checksum:
        raise DataError(f"{where}: the checksum of its length is wrong; is it a TFRecord file?")
    return length


def parse_example(data: bytes, where: str) -> dict[str, list[Any]]:
    """Feature name -> its values (bytes, floats or ints) of a serialised tf.Example; a feature without values is [].

    Raises:
      DataError: the bytes are no tf.Example; names `where`.
    """
    example = decode(_EXAMPLE["Example"], data, where)
    features: dict[str, list[Any]] = {}
    for entry in example.features.feature:
        kinds = (entry.value.bytes_list, entry.value.float_list, entry.value.int64_list)
        features[entry.key] = next((list(kind.value) for kind in kinds if kind.value), [])
    return features


def declare(messages: Declarations) -> dict[str, Any]:
    """Message classes of the protobuf library; fields that are not declared are skipped when a message is read."""
    file = descriptor_pb2.FileDescriptorProto(name="declared.proto", package="declared", syntax="proto3")
    for name, fields in messages.items():
        declared = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            kind, repeated = kind.removesuffix("*"), kind.endswith("*")
            label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
            entry = declared.field.add(name=field, number=number, label=label)
            if kind in messages:
                entry.type, entry.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".declared.{kind}"
            else:
                entry.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()  # not the process's own, which TensorFlow may have filled
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"declared.{name}")) for name in messages}


def decode(kind: Any, data: bytes, where: str) -> Any:
    """Reads a serialised message of a declared class.

    Raises:
      DataError: the bytes are none; names `where`.
    """
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise DataError(f"{where}: not a {kind.DESCRIPTOR.name} message: {error}") from error


_EXAMPLE = declare(
    {
        "BytesList": {"value": (1, "bytes*")},
        "FloatList": {"value": (1, "float*")},
        "Int64List": {"value": (1, "int64*")},
        "Feature": {"bytes_list": (1, "BytesList"), "float_list": (2, "FloatList"), "int64_list": (3, "Int64List")},
        "Entry": {"key": (1, "string"), "value": (2, "Feature")},  # what a map is made of in serialised form
        "Features": {"feature": (1, "Entry*")},
        "Example": {"features": (1, "Features")},
    }
)


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C that TFRecord files store."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _FULL


def crc32c(data: bytes) -> int:
    """CRC-32C of some bytes (RFC 3720, appendix B.4).

    The register is linear in what it starts from and in the data, so that pieces are run side by side in numpy, each
    from zero, and joined in order: the register moves over as many zero bytes, and what the piece gave is added.
    """
    values = np.frombuffer(data, np.uint8)
    head = len(values) % _LANE
    state = int(_run(np.array([_FULL], np.uint32), values[:head, None])[0])
    if len(values) > head:
        first, second, third, fourth = _skip()
        lanes = np.ascontiguousarray(values[head:].reshape(-1, _LANE).T)
        for part in _run(np.zeros(lanes.shape[1], np.uint32), lanes).tolist():
            moved = first[state & 255] ^ second[state >> 8 & 255] ^ third[state >> 16 & 255] ^ fourth[state >> 24]
            state = moved ^ part
    return state ^ _FULL


def _run(states: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The registers [n] after the bytes [k, n], one column each."""
    table = _table()
    for row in columns:
        states = table[(states ^ row) & 255] ^ states >> 8
    return states


@functools.cache
def _table() -> np.ndarray:
    """What a register of 0..255 becomes after one zero byte, [256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


@functools.cache
def _skip() -> list[list[int]]:
    """What each value of each byte of the register becomes after a lane of zero bytes, [4][256]."""
    starts = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    return _run(starts.ravel(), np.zeros((_LANE, 1), np.uint8)).reshape(4, 256).tolist()
