"""Plain English out of POD, the markup of Perl's documentation."""
import hashlib
import re

ESCAPES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}
# An inline code with nothing nested inside: L<target>, C<code>, C<< a > b >>.
INLINE = re.compile(r"([A-Z])(?:<<\s+(.*?)\s+>>|<([^<>]*)>)", re.S)


def inline(match):
    """What a reader sees of an inline code."""
    kind = match.group(1)
    body = match.group(2) if match.group(2) is not None else match.group(3)
    if kind == "E":
        return ESCAPES.get(body, body)
    if kind in "XZ":
        return ""
    if kind == "L" and "|" in body:
        return body.split("|", 1)[0]
    return body.replace('"', "").lstrip("/") if kind == "L" else body


def without_inline(text):
    """Codes nest, so the innermost are replaced until none is left."""
    while INLINE.search(text):
        text = INLINE.sub(inline, text)
    return text


def paragraph(block):
    """A POD paragraph as one line of prose, None when it holds none."""
    if block[:1] in (" ", "\t"):  # verbatim: program text
        return None
    if block.startswith("="):
        command, _, block = block.partition(" ")
        if not re.match(r"=(head\d|item)", command) or block.strip() in ("", "*"):
            return None
    return " ".join(without_inline(block).split())


def plain(pod):
    """POD as paragraphs with an empty line between them."""
    blocks = re.split(r"\n\s*\n", pod)
    return "\n\n".join(filter(None, (paragraph(block.strip("\n")) for block in blocks))) + "\n"


def passage(path, text):
    """The passage that a models.Text describes; ValueError if it is another one."""
    with open(path, "rb") as stream:
        pod = stream.read()[text.begin:text.end].decode("utf-8")
    prose = plain(pod)
    found = hashlib.sha256(prose.encode()).hexdigest()
    if found != text.sha256:
        raise ValueError("%s: the passage has SHA-256 %s, not %s; it is from %s %s"
                         % (path, found, text.sha256, text.package, text.version))
    return prose
