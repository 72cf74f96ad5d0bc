from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import (
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    MRImageStorage,
    RLELossless,
    generate_uid,
)

from ulda.data.readers import expand, find_reader
from ulda.data.readers.dicom import DicomReader
from ulda.errors import MissingExtraError, UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SERIES = generate_uid(entropy_srcs=["series"])


def dataset(path: Path, pixels: NDArray[np.uint16], syntax: str = ExplicitVRLittleEndian) -> FileDataset:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax  # type: ignore[assignment]
    meta.MediaStorageSOPClassUID = MRImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    header = FileDataset(
        str(path),
        {},
        file_meta=meta,
        preamble=bytes(128),
        is_implicit_VR=syntax == ImplicitVRLittleEndian,
        is_little_endian=syntax != ExplicitVRBigEndian,
    )
    header.SOPClassUID = MRImageStorage
    header.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    header.PatientID, header.PatientName = "secret-17", "Doe^Jane"
    header.SeriesInstanceUID, header.Modality = SERIES, "MR"
    header.Rows, header.Columns = pixels.shape[-2:]
    if pixels.ndim == 3:
        header.NumberOfFrames = len(pixels)
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 12, 11, 0
    stored = pixels.astype(">u2" if syntax == ExplicitVRBigEndian else "<u2")
    header.PixelData = stored.tobytes()
    return header


def save(header: FileDataset, path: Path, **elements: Any) -> Path:
    for keyword, value in elements.items():
        setattr(header, keyword, value)
    header.save_as(path, enforce_file_format=True)
    return path


def plane(value: int) -> NDArray[np.uint16]:
    return (np.arange(12, dtype=np.uint16).reshape(3, 4) + np.uint16(value)).astype(np.uint16)


def test_series_is_ordered_by_geometry_and_echo(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    folder.mkdir()
    oblique = [1, 0, 0, 0, 0, -1]  # coronal: the normal is +y
    for number, (position, echo) in enumerate([(10, 20.0), (-5, 20.0), (10, 6.312), (-5, 6.312), (0, 6.312)]):
        path = folder / f"{9 - number}.dcm"
        header = dataset(path, plane(100 * number))
        save(
            header,
            path,
            ImageOrientationPatient=oblique,
            ImagePositionPatient=[3, position, 7],
            EchoTime=echo,
            InstanceNumber=99 - number,
        )
    (folder / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + b"rubbish")
    (folder / "readme.txt").write_text("hello")
    (folder / "below").mkdir()
    reader = find_reader(folder)
    assert isinstance(reader, DicomReader)
    slices = list(reader.slices(folder))
    assert [int(item.array[0, 0]) for item in slices] == [300, 400, 200, 100, 0]
    assert [item.contrast for item in slices] == ["TE6.312"] * 3 + ["TE20"] * 2
    assert len({item.volume for item in slices}) == 2
    description = reader.describe(folder)
    assert (description.n_slices, description.shape) == (5, (3, 4))
    assert description.attributes == {"series": "1", "contrasts": "TE6.312, TE20"}
    assert [found for found, _ in expand([tmp_path])] == [folder]


def test_without_geometry_the_instance_number_orders(tmp_path: Path) -> None:
    for name, instance in (("a", 10), ("b", 2), ("c", 1)):
        path = tmp_path / name
        save(dataset(path, plane(instance)), path, InstanceNumber=instance, SeriesDescription="T2 TSE")
    slices = list(find_reader(tmp_path).slices(tmp_path))
    assert [item.source for item in slices] == ["c", "b", "a"]
    assert {item.contrast for item in slices} == {"T2 TSE"}


def test_the_patient_is_a_pseudonym_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    save(dataset(path, plane(0)), path, StudyInstanceUID="1.2.3")
    (item,) = DicomReader().slices(path)
    assert item.subject == "patient-" + hashlib.sha256(b"secret-17").hexdigest()[:8]
    shown = repr(item) + repr(DicomReader().describe(path))
    assert "secret" not in shown
    assert "Doe" not in shown
    save(dataset(path, plane(0)), path, PatientID="", StudyInstanceUID="1.2.3")
    (item,) = DicomReader().slices(path)
    assert item.subject == "patient-" + hashlib.sha256(b"1.2.3").hexdigest()[:8]


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian])
def test_transfer_syntaxes_and_rescaling(tmp_path: Path, syntax: str) -> None:
    path = tmp_path / "a.dcm"
    save(dataset(path, plane(256), syntax), path, RescaleSlope="0.5", RescaleIntercept="-100")
    (item,) = DicomReader().slices(path)
    np.testing.assert_array_equal(item.array, plane(256) * 0.5 - 100)
    assert item.array.dtype == np.float32


def test_run_length_encoding_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    header = dataset(path, plane(7))
    header.compress(RLELossless, plane(7))
    save(header, path)
    (item,) = DicomReader().slices(path)
    np.testing.assert_array_equal(item.array, plane(7))


def test_low_values_are_white_in_monochrome1(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    save(dataset(path, plane(5)), path, PhotometricInterpretation="MONOCHROME1")
    (item,) = DicomReader().slices(path)
    np.testing.assert_array_equal(item.array, 4095.0 - plane(5))


def test_frames_of_a_file_are_ordered_by_their_functional_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    header = dataset(path, np.stack([plane(0), plane(100), plane(200)]))
    frames = []
    for position, slope in ((5, 1), (-5, 2), (0, 1)):
        frame, where, scale = Dataset(), Dataset(), Dataset()
        where.ImagePositionPatient = [0, 0, position]
        scale.RescaleSlope, scale.RescaleIntercept = slope, 0
        frame.PlanePositionSequence = Sequence([where])
        frame.PixelValueTransformationSequence = Sequence([scale])
        frames.append(frame)
    shared, orientation, echo = Dataset(), Dataset(), Dataset()
    orientation.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    echo.EffectiveEchoTime = 80.0
    shared.PlaneOrientationSequence, shared.MREchoSequence = Sequence([orientation]), Sequence([echo])
    save(
        header,
        path,
        PerFrameFunctionalGroupsSequence=Sequence(frames),
        SharedFunctionalGroupsSequence=Sequence([shared]),
    )
    slices = list(DicomReader().slices(path))
    assert [int(item.array[0, 0]) for item in slices] == [200, 200, 0]
    np.testing.assert_array_equal(slices[0].array, 2 * plane(100).astype(float))
    assert {item.contrast for item in slices} == {"TE80"}


def test_colour_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    save(dataset(path, plane(0)), path, PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(UldaError, match=r"a\.dcm is a colour picture"):
        list(DicomReader().slices(path))


def test_pixels_that_cannot_be_decoded_are_refused_by_name(tmp_path: Path) -> None:
    short, coded = tmp_path / "short.dcm", tmp_path / "coded.dcm"
    header = dataset(short, plane(0))
    header.PixelData = header.PixelData[:8]
    save(header, short)
    header = dataset(coded, plane(0))
    header.file_meta.TransferSyntaxUID = JPEG2000Lossless
    header.PixelData = encapsulate([b"not a code stream!"])
    header["PixelData"].is_undefined_length = True
    save(header, coded)
    for path in (short, coded):
        with pytest.raises(UldaError, match=rf"{path.name} cannot be read as DICOM .*its pixel data cannot be decoded"):
            list(DicomReader().slices(path))


def test_files_without_pictures_are_passed_over_but_not_alone(tmp_path: Path) -> None:
    report, image = tmp_path / "report.dcm", tmp_path / "image.dcm"
    header = dataset(report, plane(0))
    del header.Rows, header.Columns, header.PixelData
    save(header, report)
    with pytest.raises(UldaError, match="holds no DICOM image"):
        list(DicomReader().slices(report))
    save(dataset(image, plane(0)), image)
    assert [item.source for item in DicomReader().slices(tmp_path)] == ["image.dcm"]
    with pytest.raises(UldaError, match="holds magnitude, not kspace"):
        list(DicomReader().slices(image, "kspace"))


def test_without_pydicom_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.dcm"
    save(dataset(path, plane(0)), path)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtraError) as caught:
        list(find_reader(path).slices(path))
    assert str(caught.value) == 'reading DICOM needs an optional library; install it with: pip install "ulda[dicom]"'
