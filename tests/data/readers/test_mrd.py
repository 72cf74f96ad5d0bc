from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import h5py
import ismrmrd
import numpy as np
import pytest

from ulda.data.readers import find_reader
from ulda.data.readers.mrd import MRDReader
from ulda.errors import MissingExtraError, UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

GENERATOR = shutil.which("ismrmrd_generate_cartesian_shepp_logan")
needs_generator = pytest.mark.skipif(GENERATOR is None, reason="ismrmrd-tools is not installed")

XML = """<?xml version="1.0"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
  {subject}
  <experimentalConditions><H1resonanceFrequency_Hz>63500000</H1resonanceFrequency_Hz></experimentalConditions>
  <encoding>
    <encodedSpace>
      <matrixSize><x>{x}</x><y>{y}</y><z>{z}</z></matrixSize>
      <fieldOfView_mm><x>300</x><y>300</y><z>6</z></fieldOfView_mm>
    </encodedSpace>
    <reconSpace>
      <matrixSize><x>{recon}</x><y>{y}</y><z>{z}</z></matrixSize>
      <fieldOfView_mm><x>300</x><y>300</y><z>6</z></fieldOfView_mm>
    </reconSpace>
    <encodingLimits>
      <kspace_encoding_step_1>
        <minimum>0</minimum><maximum>{last}</maximum><center>{centre}</center>
      </kspace_encoding_step_1>
    </encodingLimits>
    <trajectory>{trajectory}</trajectory>
  </encoding>
</ismrmrdHeader>
"""

PATIENT = "<subjectInformation><patientID>secret-17</patientID></subjectInformation>"


class Scan:
    """Writes acquisitions with the real library."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int],
        *,
        recon: int | None = None,
        centre: int | None = None,
        trajectory: str = "cartesian",
        subject: str = PATIENT,
    ) -> None:
        z, y, x = shape
        self.n_samples = x
        self.file = ismrmrd.Dataset(str(path), "dataset", True)
        header = XML.format(
            x=x,
            y=y,
            z=z,
            recon=recon or x,
            last=y - 1,
            centre=y // 2 if centre is None else centre,
            trajectory=trajectory,
            subject=subject,
        )
        self.file.write_xml_header(header.encode())

    def line(
        self,
        data: NDArray[np.complex64],
        step_1: int,
        *,
        step_2: int = 0,
        flags: tuple[int, ...] = (),
        centre_sample: int | None = None,
        **counters: int,
    ) -> None:
        acquisition = ismrmrd.Acquisition.from_array(np.ascontiguousarray(data))
        acquisition.center_sample = self.n_samples // 2 if centre_sample is None else centre_sample
        acquisition.idx.kspace_encode_step_1 = step_1
        acquisition.idx.kspace_encode_step_2 = step_2
        for name, value in counters.items():
            setattr(acquisition.idx, name, value)
        for flag in flags:
            acquisition.setFlag(flag)
        self.file.append_acquisition(acquisition)

    def close(self) -> None:
        self.file.close()


def noise(*shape: int) -> NDArray[np.complex64]:
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def test_lines_slices_repetitions_and_averages(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    kspace = noise(2, 2, 3, 4, 6)  # repetition, slice, coil, phase, readout
    scan = Scan(path, (1, 4, 6))
    for step in (3, 0, 2, 1):
        for at in (1, 0):
            for repetition in (0, 1):
                value = kspace[repetition, at, :, step]
                scan.line(value + 1, step, slice=at, repetition=repetition, average=0)
                scan.line(value - 1, step, slice=at, repetition=repetition, average=1)
    scan.line(1e6 * noise(3, 6), 0, flags=(ismrmrd.ACQ_IS_NOISE_MEASUREMENT,))
    scan.line(1e6 * noise(3, 6), 1, flags=(ismrmrd.ACQ_IS_PARALLEL_CALIBRATION,))
    scan.line(1e6 * noise(3, 6), 2, flags=(ismrmrd.ACQ_IS_NAVIGATION_DATA,))
    scan.close()
    reader = find_reader(path)
    assert isinstance(reader, MRDReader)
    slices = list(reader.slices(path))
    assert [item.contrast for item in slices] == ["repetition0"] * 2 + ["repetition1"] * 2
    for item, expected in zip(slices, kspace.reshape(4, 3, 4, 6), strict=True):
        np.testing.assert_allclose(np.asarray(item.array, np.complex64), expected, atol=1e-5)
        assert (item.kind, item.phase_axis, item.lines) == ("kspace", -2, None)
    assert {item.subject for item in slices} == {"patient-" + hashlib.sha256(b"secret-17").hexdigest()[:8]}
    assert len({item.volume for item in slices}) == 2
    description = reader.describe(path)
    assert (description.n_slices, description.shape) == (4, (3, 4, 6))


def test_undersampled_lines_keep_imaging_calibration_and_the_centre(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    scan = Scan(path, (1, 8, 6), centre=2, subject="")
    data = noise(3, 6)
    scan.line(data[:1], 0)
    scan.line(
        data[1:2],
        2,
        flags=(ismrmrd.ACQ_IS_PARALLEL_CALIBRATION, ismrmrd.ACQ_IS_PARALLEL_CALIBRATION_AND_IMAGING),
    )
    scan.line(data[2:], 5, flags=(ismrmrd.ACQ_IS_REVERSE,), centre_sample=2)
    scan.close()
    (item,) = MRDReader().slices(path)
    assert item.lines is not None
    assert np.flatnonzero(item.lines).tolist() == [2, 4, 7]  # step 2 is the centre and lands at 8 // 2
    np.testing.assert_array_equal(item.array[[2, 4]], data[:2])
    np.testing.assert_array_equal(item.array[7], data[2, ::-1])
    assert item.subject == "a"


def test_asymmetric_echo_is_placed_by_its_centre_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    scan = Scan(path, (1, 2, 8))
    data = noise(2, 6)
    for step in (0, 1):
        scan.line(data[step : step + 1], step, centre_sample=2)
    scan.close()
    (item,) = MRDReader().slices(path)
    np.testing.assert_array_equal(item.array[:, 2:], data)
    assert not item.array[:, :2].any()


def test_oversampling_is_cropped_in_the_image(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    image = noise(2, 16)
    scan = Scan(path, (1, 2, 16), recon=8)
    lines = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(image, axes=1), norm="ortho"), axes=1)
    for step in (0, 1):
        scan.line(lines[step : step + 1].astype(np.complex64), step)
    scan.close()
    (item,) = MRDReader().slices(path)
    back = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(item.array, axes=1), norm="ortho"), axes=1)
    np.testing.assert_allclose(back, image[:, 4:12], atol=1e-5)


def test_partitions_become_slices_only_when_complete(tmp_path: Path) -> None:
    path, partial = tmp_path / "a.h5", tmp_path / "b.h5"
    volume = noise(4, 2, 6)  # slice position, phase, readout
    kspace = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(volume, axes=0), axis=0, norm="ortho"), axes=0)
    for target, dropped in ((path, None), (partial, (3, 1))):
        scan = Scan(target, (4, 2, 6))
        for partition in range(4):
            for step in range(2):
                if (partition, step) != dropped:
                    line = kspace[partition, step][None].astype(np.complex64)
                    scan.line(line, step, step_2=partition)
        scan.close()
    slices = list(MRDReader().slices(path))
    np.testing.assert_allclose(np.stack([item.array for item in slices]), volume, atol=1e-5)
    assert MRDReader().describe(path).n_slices == 4
    with pytest.raises(UldaError, match="encoded in 3-D and misses 1 of 8 lines"):
        list(MRDReader().slices(partial))


@pytest.mark.parametrize("trajectory", ["radial", "spiral", "epi"])
def test_other_trajectories_are_refused(tmp_path: Path, trajectory: str) -> None:
    path = tmp_path / "a.h5"
    scan = Scan(path, (1, 4, 6), trajectory=trajectory)
    scan.line(noise(1, 6), 0)
    scan.close()
    with pytest.raises(UldaError, match=f"{trajectory} trajectory; expected cartesian"):
        list(MRDReader().slices(path))


def test_noise_alone_and_lines_outside_the_matrix_are_refused(tmp_path: Path) -> None:
    alone, outside, broken = tmp_path / "a.h5", tmp_path / "b.h5", tmp_path / "c.h5"
    for path, step, flags in ((alone, 0, (ismrmrd.ACQ_IS_NOISE_MEASUREMENT,)), (outside, 9, ())):
        scan = Scan(path, (1, 4, 6))
        scan.line(noise(1, 6), step, flags=flags)
        scan.close()
    with pytest.raises(UldaError, match="none for imaging"):
        list(MRDReader().slices(alone))
    with pytest.raises(UldaError, match="outside the encoded matrix"):
        list(MRDReader().slices(outside))
    shutil.copy(outside, broken)
    with h5py.File(broken, "r+") as file:
        file["dataset/xml"][0] = "<not really xml"
    with pytest.raises(UldaError, match=r"c\.h5 cannot be read as ISMRMRD"):
        list(MRDReader().slices(broken))


def test_without_ismrmrd_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    scan = Scan(path, (1, 4, 6))
    scan.line(noise(1, 6), 0)
    scan.close()
    monkeypatch.setitem(sys.modules, "ismrmrd", None)
    with pytest.raises(MissingExtraError, match=r'pip install "ulda\[mrd\]"'):
        list(find_reader(path).slices(path))


@needs_generator
@pytest.mark.parametrize("acceleration", [1, 2])
def test_generated_shepp_logan_reconstructs_to_the_phantom_in_the_file(tmp_path: Path, acceleration: int) -> None:
    assert GENERATOR is not None
    path = tmp_path / "phantom.h5"
    options = ["-m", "64", "-c", "4", "-n", "0.001", "-a", str(acceleration), "-C", "-o", str(path)]
    subprocess.run([GENERATOR, *options], check=True, capture_output=True)
    slices = list(find_reader(path).slices(path))
    assert slices[0].array.shape == (4, 64, 64)
    if acceleration == 2:
        assert slices[0].lines is not None
        assert slices[0].lines.sum() == 32
        return
    (item,) = slices
    assert item.lines is None
    axes = (-2, -1)
    coils = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(item.array, axes), axes=axes), axes)
    with h5py.File(path) as file:
        stored = file["dataset/coil_images"][()].squeeze()
    truth = stored["real"] + 1j * stored["imag"]
    truth = truth[..., truth.shape[-1] // 4 : truth.shape[-1] // 4 + 64]
    rss, expected = np.sqrt((np.abs(coils) ** 2).sum(0)), np.sqrt((np.abs(truth) ** 2).sum(0))
    assert np.corrcoef(rss.ravel(), expected.ravel())[0, 1] > 0.99
