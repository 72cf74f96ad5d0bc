"""How a model is trained, checked before anything starts: the one table of defaults, which presets override."""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ulda.errors import UldaError

Model = TypeVar("Model", bound=BaseModel)

STRICT = ConfigDict(extra="forbid", frozen=True)

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls it, in a model and in a dataclass."""


class Network(BaseModel):
    """The sizes of the network of U-LDA, as they stand in its file.

    Attributes
    ----------
    width, depth, kernel_size, delta
        Of the feature extractor; see `ulda.models.FeatureExtractor`.
    adapter_weight
        The weight of the regulariser at the start.
    eps_ratio
        The first smoothing eps, relative to the size of the adapter's kernels.
    phases
        T: the iterations of the solver, each tested.
    proposal
        ``gradient``: z and u of the paper. ``accelerated``: with momentum, and a longer step where nothing was
        measured, with gains by spatial frequency.
    steps_per_phase
        Steps of an accelerated proposal before the test.
    shared_steps
        One set of step sizes for all phases, instead of one for each.
    rank
        Rank of the low-rank update of g that belongs to a new domain; 0 for none, as in the paper.
    initialise
        Step 0: before the training, g is trained on each source alone for this fraction of the steps, and the results
        are averaged; 0 for no step 0.
    phase_lines
        Divide the image by the phase of so many lines in the centre of k-space; 1 for the global phase alone, 0 for
        none. See `ulda.physics.calibration`.
    noise_aware
        Let the weight of the regulariser grow with the noise. Where the noise is to be kept, what the solution leaves
        of the measurements is put back. In a training with noise that is so for half of the slices.
    start
        Where the solver starts: zero-filling, or a total variation reconstruction.
    choose_strength
        Choose how strong the regulariser of a new domain is to be by what predicts held-out lines best.
    safeguard
        Test every proposal. Without it every proposal is taken and nothing is promised.
    """

    model_config = STRICT

    width: int = Field(16, ge=1)
    depth: int = Field(4, ge=1)
    kernel_size: int = Field(3, ge=1)
    delta: float = Field(0.1, gt=0)
    adapter_weight: float = Field(0.003, gt=0)
    eps_ratio: float = Field(0.1, gt=0)
    phases: int = Field(15, ge=1)
    proposal: Literal["gradient", "accelerated"] = "gradient"
    steps_per_phase: int = Field(1, ge=1)
    shared_steps: bool = False
    rank: int = Field(0, ge=0, le=64)
    initialise: float = Field(0.0, ge=0, le=1)
    phase_lines: int = Field(0, ge=0)
    noise_aware: bool = False
    start: Literal["zero-filling", "total variation"] = "zero-filling"
    choose_strength: bool = False
    safeguard: bool = True

    @model_validator(mode="after")
    def _one_gradient_step(self) -> Network:
        if self.proposal == "gradient" and self.steps_per_phase > 1:
            raise ValueError("a gradient proposal takes one step per phase; set proposal to accelerated for several")
        return self


class Equilibrium(BaseModel):
    """Iterates that persist from step to step, so that the solution of the objective becomes good.

    They persist from when all phases are trained, in the last part of the steps.

    Attributes
    ----------
    chains
        How many batches persist; the steps visit them in turn.
    restart
        The probability that a visited batch is replaced by a new one, from zero-filling.
    phases
        The differentiated phases of a step that continues a batch.
    rollout
        Before those, 0 to this many phases without gradient.
    """

    model_config = STRICT

    chains: int = Field(8, ge=1)
    restart: float = Field(0.3, gt=0, le=1)
    phases: int = Field(8, ge=1)
    rollout: int = Field(20, ge=0)


class Settings(BaseModel):
    """The settings of a training or of an adaptation.

    Attributes
    ----------
    steps
        Gradient steps of Adam.
    batch_size
        Slices per step, all of one domain.
    learning_rate
        Peak of the schedule, for the kernels; the rate rises to it in the first tenth of the steps.
    stage_decay
        The rate is multiplied by this at each change of the number of phases, as in the paper. Null: one cycle of a
        cosine over all steps instead.
    step_size_multiplier
        Learning-rate multiplier of step sizes, and of the task weights of Meta.
    adapter_multiplier
        Learning-rate multiplier of adapters, whose weights are that much smaller.
    clip
        Largest norm of a gradient.
    phases
        Numbers of phases, one after the other in equal parts of the steps; empty for all phases from the start.
    ssim_weight
        Weight of the SSIM in the loss.
    logarithmic
        Take the logarithm of the mean squared error: slices then count by their decibels, not the noisy ones most.
    penalty_weight
        Weight in the loss of proposals that fail the acceptance test, relative to what a gradient step as long would
        gain.
    mean_adapter
        The probability of a step with the mean of the source adapters in place of that of its domain, so that what a
        new domain starts from is trained, too. Only in step 1.
    warp
        The probability of a slice of a step to be turned (up to 15 degrees), scaled (0.86 to 1.16) and sheared.
    augment
        In an adaptation, two thirds of the steps use further-undersampled versions of the mask (AUG of the paper).
    equilibrium
        Train the solution of the objective instead of its T-th iterate alone; null for T phases from zero-filling.
    seed
        Seed of everything random.
    validate_every, checkpoint_every
        In steps; 0 for never.
    """

    model_config = STRICT

    steps: int = Field(500, ge=1)
    batch_size: int = Field(4, ge=1)
    learning_rate: float = Field(5e-3, gt=0)
    stage_decay: float | None = Field(None, gt=0, le=1)
    step_size_multiplier: float = Field(5.0, gt=0)
    adapter_multiplier: float = Field(0.003, gt=0)
    clip: float = Field(1.0, gt=0)
    phases: tuple[int, ...] = ()
    ssim_weight: float = Field(0.01, ge=0)
    logarithmic: bool = False
    penalty_weight: float = Field(0.0, ge=0)
    mean_adapter: float = Field(0.0, ge=0, le=1)
    warp: float = Field(0.0, ge=0, le=1)
    augment: bool = False
    equilibrium: Equilibrium | None = None
    seed: int = Field(0, ge=0)
    validate_every: int = Field(100, ge=0)
    checkpoint_every: int = Field(100, ge=0)

    @field_validator("phases")
    @classmethod
    def _phases(cls, phases: tuple[int, ...]) -> tuple[int, ...]:
        if any(n < 1 for n in phases):
            raise ValueError("every number of phases must be at least 1")
        return phases

    def changed(self, **changes: Any) -> Settings:
        """Return the settings with some of them changed, checked.

        Examples
        --------
        >>> Settings().changed(steps=3).steps
        3
        """
        return checked(Settings, self.model_dump() | changes)


def checked(kind: type[Model], values: dict[str, Any]) -> Model:
    """Make a model of values from a file, or say in one sentence which key is wrong, with its path."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UldaError(_sentence(kind, error)) from error


def _sentence(kind: type[BaseModel], error: ValidationError) -> str:
    # an unknown key explains a missing one, so it comes first
    first = min(error.errors(), key=lambda entry: entry["type"] not in _UNKNOWN_KEY)
    path = _path(first["loc"])
    if first["type"] in _UNKNOWN_KEY:
        known = list(annotations_of(_part_at(kind, first["loc"][:-1])))
        near = difflib.get_close_matches(str(first["loc"][-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}"
        return f"unknown setting {path!r}; {hint}"
    if first["type"] == "missing":
        return f"the setting {path} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"the setting {path} is wrong: {message[:1].lower()}{message[1:]}" if path else f"wrong settings: {message}"


def _path(parts: tuple[int | str, ...]) -> str:
    """Write ``("data", 0, "file")`` as ``data[0].file``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _part_at(kind: type, path: tuple[int | str, ...]) -> type:
    """Return the part of a configuration that a path leads to."""
    for key in path:
        known = annotations_of(kind)
        if key in known:  # others are keys of a mapping of such parts
            kind = parts_in(known[key])[0]
    return kind


def annotations_of(part: Any) -> dict[str, Any]:
    """Return the keys of a part of a configuration, a pydantic model or a dataclass, and their types."""
    if issubclass(part, BaseModel):
        return {name: field.annotation for name, field in part.model_fields.items()}
    return {field.name: field.type for field in fields(part)}


def parts_in(annotation: Any) -> list[type]:
    """Return the parts that an annotation such as ``list[Settings]`` or ``Settings | None`` names."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return [annotation]
    return [part for argument in get_args(annotation) for part in parts_in(argument)]
