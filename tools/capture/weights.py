"""A GGUF file: its fields, and its tensors as float32 when they are asked for."""
import gguf
import numpy


class Weights:
    """The file is mapped; only what is asked for is dequantized, so that a model larger than
    the memory would be in float32 can still be run layer by layer."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.by_name = {tensor.name: tensor for tensor in self.reader.tensors}
        self.architecture = self.field("general.architecture")

    def field(self, key, default=None):
        """A field of the header; KeyError if it is missing and there is no default."""
        if key in self.reader.fields:
            return self.reader.fields[key].contents()
        if default is None:
            raise KeyError("the GGUF file has no field " + key)
        return default

    def setting(self, key, default=None):
        """A field of the architecture, for instance "block_count"."""
        return self.field("%s.%s" % (self.architecture, key), default)

    def has(self, name):
        """Whether there is a tensor of that name."""
        return name in self.by_name

    def rows(self, name, index=slice(None)):
        """Rows of a matrix [outputs, inputs], or a vector, in float32."""
        tensor = self.by_name[name]
        rows = gguf.quants.dequantize(tensor.data[index], tensor.tensor_type)
        return numpy.ascontiguousarray(rows, dtype=numpy.float32)

    def count(self, name):
        """How many rows a matrix has."""
        return len(self.by_name[name].data)
