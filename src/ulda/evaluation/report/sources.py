"""Where reports come from: one function per source, each of which returns the same `Report`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ulda.data.image_output import image_suffix
from ulda.errors import UldaError
from ulda.evaluation.report.comparison_file import EVALUATION, FILE_NAME, FORMAT, load_comparison
from ulda.evaluation.report.content import Images, Report
from ulda.evaluation.report.run_report import RUN_FORMAT, report_of_run
from ulda.io.file_set import finish
from ulda.io.hdf5_input import open_hdf5, text
from ulda.solvers.outputs import finish_output, run_file


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
    kind = _kind(source)
    if kind != RUN_FORMAT and reference is not None:
        raise UldaError(f"{source.name} has its own reference; --reference is for an output of `ulda reconstruct`")
    if kind == FORMAT:
        return load_comparison(source / FILE_NAME if source.is_dir() else source)
    return report_of_run(_run_file(source), None if reference is None else _magnitudes(reference))


def _kind(source: Path) -> str:
    """Return what a source is: a comparison or a run."""
    if source.is_dir():
        finish(source / EVALUATION)
        if (source / FILE_NAME).is_file():
            return FORMAT
        raise UldaError(
            f"the folder {source} holds no {FILE_NAME} and no runs of an experiment; `ulda evaluate DATA --out FOLDER` "
            "and `ulda demo` write the one, `ulda experiment run` the other"
        )
    kind = _format(_run_file(source))
    if kind not in (FORMAT, RUN_FORMAT):
        raise UldaError(
            f"{source.name} is neither a {FILE_NAME} nor an output of `ulda reconstruct` with its run file beside it"
        )
    return kind


def _run_file(source: Path) -> Path:
    finish_output(source)
    return run_file(source) if image_suffix(source) else source


def _format(path: Path) -> str:
    with open_hdf5(path, "HDF5", "give a folder or a file with results of ulda") as file:
        return text(file.attrs.get("format", ""))


def _magnitudes(source: str | Path) -> Images:
    from ulda.training.slices import opened

    with opened(source) as domain:
        domain.check_references("it cannot be a reference")
        return np.stack([image.abs().float().numpy() for image in domain.images()])
