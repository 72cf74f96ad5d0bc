"""Files that are whole or absent, and fingerprints of what is in them."""

from ulda.io.atomic import atomic_output
from ulda.io.fingerprints import digest, fingerprint
from ulda.io.hdf5 import hdf5_output

__all__ = ["atomic_output", "digest", "fingerprint", "hdf5_output"]
