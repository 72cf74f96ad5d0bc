"""Where reports come from: one function per source, each of which returns the same `Report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from ulda.data.image_output import image_suffix
from ulda.errors import UldaError
from ulda.evaluation.report.comparison_file import FILE_NAME, FORMAT, load_comparison
from ulda.evaluation.report.content import Images, Report
from ulda.evaluation.report.run_report import RUN_FORMAT, report_of_run
from ulda.solvers.outputs import run_file

FOLDERS: dict[str, Callable[[Path], Report]] = {FILE_NAME: load_comparison}
"""The sources that are folders: by the file that tells them, the function that reads that file."""


def read_report(source: str | Path, reference: str | Path | None = None) -> Report:
    """Read the results of `ulda evaluate --out`, `ulda demo` or `ulda reconstruct`.

    Parameters
    ----------
    source
        A folder with ``comparison.h5``, that file, or an output of `ulda reconstruct`.
    reference
        Fully sampled data to compare an output of `ulda reconstruct` with, slice by slice.
    """
    source = Path(source)
    if source.is_dir():
        for name, read in FOLDERS.items():
            if (source / name).is_file():
                _refuse(reference, source)
                return read(source / name)
        raise UldaError(
            f"the folder {source} holds no {' or '.join(FOLDERS)}; "
            "`ulda evaluate DATA --out FOLDER` and `ulda demo` write one"
        )
    path = run_file(source) if image_suffix(source) else source
    kind = _format(path)
    if kind == FORMAT:
        _refuse(reference, source)
        return load_comparison(path)
    if kind == RUN_FORMAT:
        return report_of_run(path, None if reference is None else _magnitudes(reference))
    raise UldaError(
        f"{source.name} is neither a {FILE_NAME} nor an output of `ulda reconstruct` with its run file beside it"
    )


def _refuse(reference: str | Path | None, source: Path) -> None:
    if reference is not None:
        raise UldaError(f"{source.name} has its own reference; --reference is for an output of `ulda reconstruct`")


def _format(path: Path) -> str:
    if not path.exists():
        raise UldaError(f"there is no file {path}")
    try:
        with h5py.File(path) as file:
            return str(file.attrs.get("format", ""))
    except OSError as error:
        raise UldaError(f"{path.name} is not an HDF5 file; give a folder or a file with results of ulda") from error


def _magnitudes(source: str | Path) -> Images:
    from ulda.training.slices import opened

    with opened(source) as domain:
        if domain.undersampled:
            raise UldaError(f"{source} arrived undersampled, so it cannot be a reference")
        return np.stack([image.abs().float().numpy() for image in domain.images()])
