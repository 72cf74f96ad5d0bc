"""Ed25519 signatures of run files: they tell whose a certificate is, which no replay can.

Signed is the digest of the manifest, which binds all that the file and the images beside it hold. The signature is an
attribute of the run file. Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` writes them, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ulda.errors import MissingExtraError, UldaError
from ulda.io.atomic import atomic_output
from ulda.io.file_set import file_set, finish
from ulda.io.hdf5 import hdf5_output
from ulda.io.hdf5_input import open_hdf5
from ulda.solvers.manifest import SIGNATURE
from ulda.solvers.outputs import certified_file, check_parts

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "Ed25519"

MOST_BYTES = 10_000
"""More than a file with a key has."""


def new_key(name: str | Path) -> tuple[Path, Path]:
    """Make a pair of keys: the private one in the file `name`, the public one in ``name.pub``; return both paths."""
    _check_extra()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = Path(name), Path(f"{name}.pub")
    contents = {
        private: key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()),
        public: key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo),
    }
    finish(private)
    for path in contents:
        if path.exists():
            raise UldaError(f"{path} exists already; a key that is replaced is lost, so choose another name")
    with file_set(private) as folder:
        for path, content in contents.items():
            # nobody else may read the private key, not even for a moment
            mode = 0o600 if path == private else 0o644
            place = folder / path.name
            with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
    return private, public


def sign_output(out: str | Path, key: str | Path) -> str:
    """Sign an output of `ulda reconstruct` with a private key and return the fingerprint of the key.

    The output must be as its manifest says; it is not replayed. A signature it already has is replaced.
    """
    _check_extra()
    secret, path = _private_key(Path(key)), certified_file(out)
    manifest = check_parts(out)
    if manifest.problems:
        raise UldaError(f"{path.name} is not as it was written, so it is not signed: {manifest.problems[0]}")
    public = secret.public_key().public_bytes_raw()
    signature = {"algorithm": ALGORITHM, "key": public.hex(), "signature": secret.sign(_message(manifest.digest)).hex()}
    with atomic_output(path, overwrite=True) as temporary, open_hdf5(path) as old, hdf5_output(temporary) as new:
        for name in old:
            old.copy(name, new)
        for name, value in old.attrs.items():
            new.attrs[name] = value
        new.attrs[SIGNATURE] = json.dumps(signature)
    return key_fingerprint(public)


def signature_problem(digest: str, signature: str, key: str | Path) -> str:
    """Say in one sentence why a signature is not that of a digest with a key; empty if it is.

    Parameters
    ----------
    digest, signature
        What `ulda.solvers.verify_output` found in the output.
    key
        The file of the public key.
    """
    _check_extra()
    from cryptography.exceptions import InvalidSignature

    key = Path(key)
    public = _public_key(key)
    if not signature:
        return "it is not signed; its maker can do so with: ulda sign OUT --key KEY"
    try:
        fields = json.loads(signature)
        algorithm, signer, value = fields["algorithm"], bytes.fromhex(fields["key"]), bytes.fromhex(fields["signature"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return "its signature is not of the expected form"
    if algorithm != ALGORITHM or set(fields) != {"algorithm", "key", "signature"}:
        return f"its signature is not one of {ALGORITHM}"
    expected = public.public_bytes_raw()
    if signer != expected:
        return (
            f"it is signed with the key {key_fingerprint(signer)}, not with {key.name}, which is "
            f"{key_fingerprint(expected)}"
        )
    try:
        public.verify(value, _message(digest))
    except InvalidSignature:
        return f"the signature with {key.name} is not one of this file: the file or the signature was changed"
    return ""


def key_fingerprint(public: bytes) -> str:
    """Return sixteen hexadecimal digits that name a public key.

    Examples
    --------
    >>> key_fingerprint(bytes(32))
    '66687aadf862bd77'
    """
    from hashlib import sha256

    return sha256(public).hexdigest()[:16]


def _message(digest: str) -> bytes:
    """Return what is signed; the prefix keeps a signature from being taken for one of anything else."""
    return f"ulda-manifest-1:{digest}".encode()


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        found = serialization.load_pem_private_key(_content(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, Ed25519PrivateKey):
        raise UldaError(
            f"{path.name} is not a private {ALGORITHM} key in PEM without a password; make one with: "
            "ulda sign --new-key NAME"
        )
    return found


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        found = serialization.load_pem_public_key(_content(path))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, Ed25519PublicKey):
        raise UldaError(f"{path.name} is not a public {ALGORITHM} key in PEM; ulda sign --new-key NAME writes NAME.pub")
    return found


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise UldaError(f"there is no file {path} with a key")
    with path.open("rb") as stream:
        return stream.read(MOST_BYTES)


def _check_extra() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("signing", "sign") from error
