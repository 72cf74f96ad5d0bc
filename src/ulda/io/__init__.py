"""Files that are whole or absent, alone and in sets, locks of them, and fingerprints of what is in them."""

from ulda.io.atomic import atomic_output
from ulda.io.file_set import file_set
from ulda.io.fingerprints import digest, fingerprint
from ulda.io.hdf5 import hdf5_output
from ulda.io.locks import locked_file, locked_folder

__all__ = ["atomic_output", "digest", "file_set", "fingerprint", "hdf5_output", "locked_file", "locked_folder"]
