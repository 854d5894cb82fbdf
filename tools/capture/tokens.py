"""The model's own tokenizer, built from the vocabulary in the GGUF file."""
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# tokenizer.ggml.token_type
NORMAL, USER_DEFINED, BYTE = 1, 4, 6
SPACE = "\u2581"  # SentencePiece writes a blank like this

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def smollm():
    """Digits stand alone, the rest is cut as GPT-2 does."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def qwen2():
    """Cut by the pattern above, then bytes."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# By tokenizer.ggml.pre: how the text is cut before pairs are merged.
CUTS = {"smollm": smollm, "qwen2": qwen2}


def byte_level(weights, vocabulary):
    """Byte-level BPE with the merges of the file."""
    kind = weights.field("tokenizer.ggml.pre")
    if kind not in CUTS:
        raise ValueError("unknown pre-tokenizer " + kind)
    merges = [tuple(m.split(" ")) for m in weights.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = CUTS[kind]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def merges_of_scores(vocabulary, scores):
    """SentencePiece files hold scores of pieces instead of merges: a pair is merged the
    sooner, the higher the score of what it makes."""
    ranked = []
    for piece, number in vocabulary.items():
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        ranked += [(-scores[number], vocabulary[left], vocabulary[right], left, right)
                   for left, right in splits if left in vocabulary and right in vocabulary]
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def sentence_piece(weights, vocabulary):
    """SentencePiece BPE with bytes for characters that the vocabulary lacks."""
    types = weights.field("tokenizer.ggml.token_type")
    kept = {piece: n for piece, n in vocabulary.items() if types[n] == NORMAL}
    merges = merges_of_scores(kept, weights.field("tokenizer.ggml.scores"))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    # Line breaks are whole tokens, found before anything is merged.
    tokenizer.add_tokens([AddedToken(piece, normalized=False)
                          for piece, n in vocabulary.items() if types[n] == USER_DEFINED])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                                           decoders.Fuse()])
    return tokenizer


BUILDERS = {"gpt2": byte_level, "llama": sentence_piece}


def tokenize(weights, text):
    """Token numbers of a text, with the model's start token if it wants one."""
    kind = weights.field("tokenizer.ggml.model")
    if kind not in BUILDERS:
        raise ValueError("unknown tokenizer " + kind)
    vocabulary = {piece: n for n, piece in enumerate(weights.field("tokenizer.ggml.tokens"))}
    tokenizer = BUILDERS[kind](weights, vocabulary)
    numbers = tokenizer.encode(text, add_special_tokens=False).ids
    if tokenizer.decode(numbers) != text:
        raise ValueError("the tokens do not decode to the text")
    start = []
    if weights.field("tokenizer.ggml.add_bos_token", False):
        start = [weights.field("tokenizer.ggml.bos_token_id")]
    return start + numbers
