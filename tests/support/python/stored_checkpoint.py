"""A checkpoint's tensors as numpy arrays of their bits: for oracles that cut and join tensors and never compute."""

import numpy

import safetensors_io

_BITS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class StoredCheckpoint:
    """Its config, and by name each tensor's dtype and its elements as unsigned integers. Thread-compatible."""

    def __init__(self, directory):
        stored = safetensors_io.read_checkpoint(directory)
        self.config = safetensors_io.read_config(directory)
        self.dtypes = {name: tensor.dtype for name, tensor in stored.items()}
        self.tensors = {name: _bits_of(tensor) for name, tensor in stored.items()}


def _bits_of(tensor):
    bits = _BITS[safetensors_io.ELEMENT_BYTES[tensor.dtype]]
    return numpy.frombuffer(bytes(tensor.data), dtype=bits).reshape(tensor.shape)
