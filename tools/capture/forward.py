"""The forward pass of llama, qwen2 and gemma3 models, float32, the whole text at once.

Arrays are [tokens, heads, head_dim] or [tokens, width]. What a model has beyond plain llama
(biases, norms of queries and keys, norms after a block) is seen from its tensors; what
tensors do not show is in the table ARCHITECTURES."""
from dataclasses import dataclass

import numpy

VOCABULARY_STEP = 8192  # rows of the output matrix held in float32 at a time


def silu(x):
    """x times its logistic function."""
    with numpy.errstate(over="ignore"):  # exp overflows to inf, and 1 / inf is the limit
        return x / (1 + numpy.exp(-x))


def gelu(x):
    """The form with tanh."""
    return 0.5 * x * (1 + numpy.tanh(numpy.float32(0.7978845608) * (x + 0.044715 * x ** 3)))


@dataclass(frozen=True)
class Architecture:
    """What the tensors do not show."""
    interleaved: bool  # RoPE turns channels (2i, 2i+1); otherwise (i, i + head_dim/2)
    activation: object
    scaled_embedding: bool = False
    full_every: int = 1  # every so many layers one sees everything, the others a window
    local_base: float = 0.0  # RoPE base of the layers with a window


ARCHITECTURES = {
    "llama": Architecture(interleaved=True, activation=silu),
    "qwen2": Architecture(interleaved=False, activation=silu),
    "gemma3": Architecture(interleaved=False, activation=gelu, scaled_embedding=True,
                           full_every=6, local_base=10000.0),
}


class Shape:
    """Sizes and constants from the header of the file."""

    def __init__(self, weights):
        if weights.architecture not in ARCHITECTURES:
            raise ValueError("unknown architecture " + weights.architecture)
        scaling = weights.setting("rope.scaling.type", "none")
        if scaling != "none" or weights.has("rope_freqs.weight"):
            raise ValueError("scaled RoPE is not supported")
        self.kind = ARCHITECTURES[weights.architecture]
        self.width = weights.setting("embedding_length")
        self.layers = weights.setting("block_count")
        self.heads = weights.setting("attention.head_count")
        self.kv_heads = weights.setting("attention.head_count_kv")
        self.head_dim = weights.setting("attention.key_length", self.width // self.heads)
        self.epsilon = numpy.float32(weights.setting("attention.layer_norm_rms_epsilon"))
        self.base = weights.setting("rope.freq_base")
        self.scale = self.head_dim ** -0.5
        self.sliding = weights.setting("attention.sliding_window", 0)

    def window(self, layer):
        """How many tokens a layer sees, its own included; 0 for all."""
        return self.sliding if (layer + 1) % self.kind.full_every else 0

    def rope_base(self, layer):
        """Layers with a window may turn faster."""
        return self.kind.local_base if self.window(layer) else self.base


def rms_norm(x, weight, epsilon):
    """Rows scaled to a mean square of one, then by channel."""
    return x / numpy.sqrt(numpy.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x, base, interleaved):
    """RoPE: pairs of channels turned by position * base ** (-2i / head_dim)."""
    tokens, _, dim = x.shape
    # Angles in double: positions times frequencies lose too much in float32.
    angles = numpy.outer(numpy.arange(tokens), float(base) ** (-numpy.arange(0, dim, 2) / dim))
    cos = numpy.cos(angles).astype(numpy.float32)[:, None, :]
    sin = numpy.sin(angles).astype(numpy.float32)[:, None, :]
    first, second = ((numpy.s_[..., 0::2], numpy.s_[..., 1::2]) if interleaved
                     else (numpy.s_[..., :dim // 2], numpy.s_[..., dim // 2:]))
    out = numpy.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[first] * sin + x[second] * cos
    return out


def hidden(tokens, window):
    """True where a query (row) must not see a key (column)."""
    distance = numpy.arange(tokens)[:, None] - numpy.arange(tokens)[None, :]
    return (distance < 0) | (distance >= window) if window else distance < 0


def attend(q, k, v, scale, window):
    """Causal attention; a group of query heads shares a key head."""
    tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    mask = hidden(tokens, window)
    out = numpy.empty_like(q)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T * numpy.float32(scale)
        scores[mask] = -numpy.inf
        scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = scores @ v[:, head // group] / scores.sum(axis=1, keepdims=True)
    return out.reshape(tokens, -1)


class Layer:
    """One block of the model; its weights live as long as this object's methods run."""

    def __init__(self, weights, shape, number):
        self.weights, self.shape, self.number = weights, shape, number

    def get(self, name):
        """A tensor of this block."""
        return self.weights.rows("blk.%d.%s" % (self.number, name))

    def has(self, name):
        """Whether this block has the tensor."""
        return self.weights.has("blk.%d.%s" % (self.number, name))

    def project(self, x, name):
        """x times a matrix, plus its bias if there is one."""
        out = x @ self.get(name + ".weight").T
        return out + self.get(name + ".bias") if self.has(name + ".bias") else out

    def norm(self, x, name):
        """RMS norm; x itself when the model has none at this place."""
        if not self.has(name + ".weight"):
            return x
        return rms_norm(x, self.get(name + ".weight"), self.shape.epsilon)

    def heads(self, x, name):
        """One of q, k, v as [tokens, heads, head_dim]."""
        return self.project(x, name).reshape(len(x), -1, self.shape.head_dim)

    def turned(self, x, name):
        """Queries or keys as attention uses them."""
        x = self.norm(self.heads(x, name), name + "_norm")
        return rotate(x, self.shape.rope_base(self.number), self.shape.kind.interleaved)

    def attention(self, x):
        """The first half of the block, and q, k, v as attention saw them."""
        normed = self.norm(x, "attn_norm")
        q, k = self.turned(normed, "attn_q"), self.turned(normed, "attn_k")
        v = self.heads(normed, "attn_v")
        seen = attend(q, k, v, self.shape.scale, self.shape.window(self.number))
        out = self.norm(self.project(seen, "attn_output"), "post_attention_norm")
        return x + out, (q, k, v)

    def feed_forward(self, x):
        """The second half of the block."""
        normed = self.norm(x, "ffn_norm")
        gate = self.shape.kind.activation(self.project(normed, "ffn_gate"))
        out = self.project(gate * self.project(normed, "ffn_up"), "ffn_down")
        return x + self.norm(out, "post_ffw_norm")


def cross_entropy(weights, x, targets):
    """Mean of -log p(target) in nats. The logits of one text are larger than the model, so
    the sum of exponentials is gathered over slices of the vocabulary."""
    name = "output.weight" if weights.has("output.weight") else "token_embd.weight"
    top = numpy.full(len(x), -numpy.inf)
    total = numpy.zeros(len(x))
    wanted = numpy.empty(len(x))
    for begin in range(0, weights.count(name), VOCABULARY_STEP):
        logits = x @ weights.rows(name, slice(begin, begin + VOCABULARY_STEP)).T
        higher = numpy.maximum(top, logits.max(axis=1))
        total *= numpy.exp(top - higher)
        total += numpy.exp(logits - higher[:, None].astype(numpy.float32)).sum(axis=1)
        top = higher
        inside = (targets >= begin) & (targets < begin + logits.shape[1])
        wanted[inside] = logits[inside, targets[inside] - begin]
    return float(numpy.mean(top + numpy.log(total) - wanted))


def run(weights, tokens, keep):
    """Perplexity of the tokens, and {layer: (q, k, v)} for the layers to keep."""
    shape = Shape(weights)
    tokens = numpy.asarray(tokens)
    x = weights.rows("token_embd.weight", tokens)
    if shape.kind.scaled_embedding:
        x *= numpy.float32(shape.width ** 0.5)
    kept = {}
    for number in range(shape.layers):
        layer = Layer(weights, shape, number)
        x, seen = layer.attention(x)
        x = layer.feed_forward(x)
        if number in keep:
            kept[number] = seen
    x = rms_norm(x, weights.rows("output_norm.weight"), shape.epsilon)
    # The last token predicts what the run does not contain.
    return float(numpy.exp(cross_entropy(weights, x[:-1], tokens[1:]))), kept
