"""What the checks of this folder share: the files of the tree, and C without its comments."""
import os
import re
import subprocess


def files():
    """Tracked files and new ones that git does not ignore, sorted; run from the root."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
    return sorted(n for n in set(names.split("\0")) if n and os.path.isfile(n))


def read(path):
    """The bytes of a file."""
    with open(path, "rb") as stream:
        return stream.read()


def read_text(path):
    """The text of a file; bytes that are not UTF-8 become marks and never stop a check."""
    return read(path).decode("utf-8", errors="replace")


TOKEN = re.compile(
    r"""//(?:\\\n|[^\n])*            # a comment to the end of the line
      | /\*.*?\*/                    # a comment
      | "(?:\\.|[^"\\\n])*"          # a string
      | '(?:\\.|[^'\\\n])*'          # a character
    """,
    re.S | re.X,
)


def blank(text):
    """Spaces of the same shape."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    """C text with comments blanked; strings stay."""
    return TOKEN.sub(lambda m: blank(m.group()) if m.group()[0] == "/" else m.group(), text)


def bare(text):
    """C text with comments and the insides of strings blanked."""
    def shorten(match):
        token = match.group()
        if token[0] == "/":
            return blank(token)
        return token[0] + blank(token[1:-1]) + token[-1]
    return TOKEN.sub(shorten, text)


def line_of(text, offset):
    """Number of the line that holds an offset, from 1."""
    return text.count("\n", 0, offset) + 1


def under(path, folder):
    """Whether a path is a folder's, at any depth, or is that very file."""
    return path == folder or path.startswith(folder + "/")
