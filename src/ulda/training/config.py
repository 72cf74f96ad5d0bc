"""The file that describes a training: which data, which masks, which network, how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ulda.errors import UldaError
from ulda.training.network import Architecture
from ulda.training.settings import SourceSettings, checked
from ulda.training.slices import DEMO

ULDA_METHOD = "ulda"
"""The method that `architecture`, `initialise` and `rounds` belong to."""

OF_ULDA = frozenset({"architecture", "initialise", "rounds"})
"""The keys that only this method has."""

TIME_OR_ROUNDS = "a time (seconds) and rounds exclude each other; give the steps of each round, or leave the rounds out"
"""What is said where both are given."""

STRICT = ConfigDict(extra="forbid", frozen=True)


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
    phase_seed
        Give magnitude images a smooth random phase with this seed; null for none.
    slices
        Train on this many slices, spread over the subjects; null for all.
    """

    model_config = STRICT

    name: str = Field(min_length=1, pattern=r"^[^.]+$")
    file: str = Field(min_length=1)
    size: tuple[int, int] | None = None
    phase_seed: int | None = Field(None, ge=0)
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
        The sampling ratios; a step draws one of all masks.
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

    ratios: tuple[float, ...] = Field((0.1, 0.15, 0.2, 0.25, 0.3), min_length=1)
    per_ratio: int = Field(4, ge=1)
    center: float = Field(0.05, ge=0, le=1)
    seed: int = Field(1, ge=0)
    validation_ratio: float = Field(0.2, gt=0, le=1)
    validation_seed: int = Field(0, ge=0)

    @field_validator("ratios")
    @classmethod
    def _fractions(cls, ratios: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < ratio <= 1 for ratio in ratios):
            raise ValueError("a sampling ratio must lie in (0, 1]")
        return ratios


@dataclass(frozen=True)
class CheckedArchitecture(Architecture):
    """The sizes of the network, checked."""

    __doc__ = Architecture.__doc__
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0 and not isinstance(value, bool):
                raise ValueError(f"{name} must be positive")


def check_phases(wanted: Sequence[int] | None, n_phases: int | None) -> None:
    """Refuse to train more phases than a network has."""
    if wanted and n_phases is not None and max(wanted) > n_phases:
        raise UldaError(f"{max(wanted)} phases are to be trained, but the network has {n_phases}")


class Config(BaseModel):
    """A training from its data to a base, or to a model of another method.

    Attributes
    ----------
    name
        The name of the base.
    method
        What to train; `ulda methods` lists the methods.
    sizes
        The sizes of another method than ulda, whose own are in `architecture`; what is left out has its default.
    seconds
        Train for this time, as many steps as fit into it, instead of `train.steps`; null for the steps.
    seed
        Seed of the start of the network; the masks and the stages have their own.
    data
        The source domains. Their train splits are learned from, their val splits validate; where nothing is labelled
        val, subjects are held out. Slices labelled test are never used.
    masks
        The masks.
    architecture
        For ulda: the sizes of the network.
    initialise
        For ulda, step 0: the extractor is trained on each source alone and averaged; null to leave it out.
    train
        Step 1: all sources together.
    rounds
        Further rounds of step 1, each from where the one before ended. Only for ulda, and not with `seconds`; each has
        the keys of `train`.
    card
        Free fields for the model card, such as licences and limits.
    """

    model_config = STRICT

    name: str = Field("base", min_length=1)
    method: str = ULDA_METHOD
    sizes: dict[str, Any] = Field(default_factory=dict)
    seconds: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)
    data: tuple[DataConfig, ...] = Field(min_length=1)
    masks: MaskConfig = MaskConfig()
    architecture: CheckedArchitecture = CheckedArchitecture()
    initialise: SourceSettings | None = SourceSettings(steps=150)
    train: SourceSettings = SourceSettings()
    rounds: tuple[SourceSettings, ...] = ()
    card: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _different_names(self) -> Config:
        names = [entry.name for entry in self.data]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two source domains have the name {twice[0]}")
        return self

    @model_validator(mode="after")
    def _keys_of_the_method(self) -> Config:
        if self.method == ULDA_METHOD and self.sizes:
            raise ValueError("sizes are those of other methods; the sizes of ulda are given as architecture")
        if self.method != ULDA_METHOD:
            given = OF_ULDA & self.model_fields_set
            if self.train.lower_level != "unrolled":
                given |= {"train.lower_level"}
            if given:
                raise ValueError(f"{min(given)} belongs to ulda, but the method is {self.method}; remove one of them")
        return self

    @model_validator(mode="after")
    def _phases_that_there_are(self) -> Config:
        if self.method == ULDA_METHOD:
            for stage in self.all_rounds if self.initialise is None else (self.initialise, *self.all_rounds):
                check_phases(stage.phases, self.architecture.phases)
        return self

    @model_validator(mode="after")
    def _time_or_rounds(self) -> Config:
        if self.seconds is not None and self.rounds:
            raise ValueError(TIME_OR_ROUNDS)
        return self

    @property
    def all_rounds(self) -> tuple[SourceSettings, ...]:
        """The settings of step 1: its first round, which is `train`, and the further ones."""
        return (self.train, *self.rounds)

    def values(self) -> dict[str, Any]:
        """Return what YAML and JSON hold: all keys that the method has."""
        return self.model_dump(mode="json", exclude=set() if self.method == ULDA_METHOD else set(OF_ULDA))

    def resolved(self, folder: Path) -> Config:
        """Return the configuration with the paths of the data made absolute, from those relative to a folder."""
        return self.model_copy(update={"data": tuple(entry.resolved(folder) for entry in self.data)})


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise UldaError(f"the key {key_node.value!r} is given twice, again in line {line}; remove one of them")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def parse_config(text: str) -> Config:
    r"""Read a configuration; every mistake is one sentence that names the key by its path.

    Examples
    --------
    >>> parse_config("data: [{name: knee, file: knee.h5}]\ntrain: {learning_rat: 1e-3}")
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: unknown setting 'train.learning_rat'; did you mean 'learning_rate'?
    """
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UldaError(f"the configuration is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(values, dict):
        raise UldaError("the configuration is not a list of keys and values; see `ulda train --print-config`")
    return checked(Config, values)


def load_config(path: str | Path) -> Config:
    """Read the configuration in a file, with its relative paths made absolute."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UldaError(f"cannot read the configuration {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return parse_config(text).resolved(path.parent)
    except UldaError as error:
        raise UldaError(f"{path.name}: {error}") from error
