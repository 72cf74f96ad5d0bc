"""The file that describes a training: which data, which masks, which network, how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from ulda.errors import UldaError
from ulda.io.documents import MOST_YAML, parse_yaml
from ulda.io.untrusted import read_text
from ulda.physics.acquisition import ACQUISITIONS
from ulda.training.settings import STRICT, Settings, checked

DEMO = "demo:"
"""What the name of an embedded domain starts with, where a file is expected."""


class DataConfig(BaseModel):
    """One source domain.

    Attributes
    ----------
    name
        The domain's name in the model.
    file
        A domain file, any readable file or folder, or an embedded domain such as demo:knee. A relative path is relative
        to the configuration.
    size
        Fourier-crop or zero-pad to this size, e.g. 128 or [128, 96]; null keeps the size.
    slices
        Train on this many slices, spread over the subjects; null for all.
    """

    model_config = STRICT

    name: str = Field(min_length=1, pattern=r"^[^.]+$")
    file: str = Field(min_length=1)
    size: tuple[int, int] | None = None
    slices: int | None = Field(None, ge=1)

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        return (size, size) if isinstance(size, int) else size

    def resolved(self, folder: Path) -> DataConfig:
        """Return the entry with its path made absolute, from one relative to a folder."""
        if self.file.startswith(DEMO):
            return self
        return self.model_copy(update={"file": str((folder / self.file).resolve())})


class MaskConfig(BaseModel):
    """The masks that the steps draw from.

    Attributes
    ----------
    ratios
        The sampling ratios; a step draws one of all masks. Null: the acquisition draws a new mask in each step.
    per_ratio
        Masks for each ratio.
    center
        The fraction of lines around the origin that is always sampled.
    seed
        Seed of the first mask; the others count on from it.
    validation_ratio, validation_seed
        The mask that the validations use.
    """

    model_config = STRICT

    ratios: tuple[float, ...] | None = Field(None, min_length=1)
    per_ratio: int = Field(4, ge=1)
    center: float = Field(0.05, ge=0, le=1)
    seed: int = Field(1, ge=0)
    validation_ratio: float = Field(0.2, gt=0, le=1)
    validation_seed: int = Field(0, ge=0)

    @field_validator("ratios")
    @classmethod
    def _fractions(cls, ratios: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if not all(0 < ratio <= 1 for ratio in ratios or ()):
            raise ValueError("a sampling ratio must lie in (0, 1]")
        return ratios


class Config(BaseModel):
    """A training from its data to a base, or to a model of another method.

    Attributes
    ----------
    name
        The name of the base.
    method
        What to train; `ulda methods` lists the methods.
    preset
        The preset that `network` and `train` override; null for that of the method.
    network
        Sizes of the method, where they differ from the preset's.
    seconds
        Train for this time, as many steps as fit into it, instead of `train.steps`; null for the steps.
    seed
        Seed of the start of the network; the masks and the training have their own.
    data
        The source domains. Their train splits are learned from, their val splits validate; where nothing is labelled
        val, subjects are held out. Slices labelled test are never used.
    acquisition
        How k-space is simulated from magnitude images: ideal, single-coil or scanner. Complex images keep their phase,
        measured k-space its phase, noise and coils.
    masks
        The masks.
    train
        Settings, where they differ from the preset's.
    card
        Free fields for the model card, such as licences and limits.
    """

    model_config = STRICT

    name: str = Field("base", min_length=1)
    method: str = "ulda"
    preset: str | None = None
    network: dict[str, Any] = Field(default_factory=dict)
    seconds: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)
    data: tuple[DataConfig, ...] = Field(min_length=1)
    acquisition: Literal["ideal", "single-coil", "scanner"] = "scanner"
    masks: MaskConfig = MaskConfig()
    train: Settings = Settings()
    card: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _different_names(self) -> Config:
        names = [entry.name for entry in self.data]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two source domains have the name {twice[0]}")
        return self

    @model_validator(mode="after")
    def _there_are_masks(self) -> Config:
        if self.masks.ratios is None and not ACQUISITIONS[self.acquisition].masks:
            raise ValueError(f"the acquisition {self.acquisition} draws no masks; give masks.ratios")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The settings that the file gives, in place of the preset's."""
        return {key: getattr(self.train, key) for key in self.train.model_fields_set}

    def values(self) -> dict[str, Any]:
        """Return what YAML and JSON hold."""
        return self.model_dump(mode="json")

    def resolved(self, folder: Path) -> Config:
        """Return the configuration with the paths of the data made absolute, from those relative to a folder."""
        return self.model_copy(update={"data": tuple(entry.resolved(folder) for entry in self.data)})


def parse_config(text: str) -> Config:
    r"""Read a configuration; every mistake is one sentence that names the key by its path.

    Examples
    --------
    >>> parse_config("data: [{name: knee, file: knee.h5}]\ntrain: {learning_rat: 1e-3}")
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: unknown setting 'train.learning_rat'; did you mean 'learning_rate'?
    """
    return checked(Config, parse_yaml(text))


def load_config(path: str | Path) -> Config:
    """Read the configuration in a file, with its relative paths made absolute."""
    path = Path(path)
    text = read_text(path, "a configuration", MOST_YAML)
    try:
        return parse_config(text).resolved(path.parent)
    except UldaError as error:
        raise UldaError(f"{path.name}: {error}") from error
