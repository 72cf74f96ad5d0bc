"""How a model is trained, checked before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ulda.errors import UldaError

Model = TypeVar("Model", bound=BaseModel)

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls it, in a model and in a dataclass."""


IN_ADAPTATIONS: dict[str, Any] = {"phases": (), "penalty_weight": 0.1, "shares": (0.25, 0.5, 0.75), "warp": 0.5}
"""What is adapted has been trained: it has all its phases from the start, and they mostly descend, which the penalty
keeps. Few slices teach the right direction and often too much of it, so shares of the way compete with its ends. Half
of few slices are warped: with all of them, what is peculiar to a domain is lost, and with none it is learned by heart.
"""

OF_NEW_DOMAINS: dict[str, Any] = {
    "learning_rate": 4e-3,
    "adapter_rate": 0.001,
    "adapter_rate_of_many": 0.003,
}
"""How a new domain of U-LDA learns; as the penalty keeps proposals descending, the rate may be as fast as this. Many
slices can teach the adapter as fast as the sources did."""


FEW_STEPS = 100
"""An adaptation of more steps teaches a domain of U-LDA more kernels of its own, and with few slices their weights
faster."""

_ADDED_RATE = 4.0
"""How much faster: at the common rate the product of such kernels, which start small, with weights that start as zero
grows several times slower than a kernel that is free."""


def of_new_domains(settings: Mapping[str, Any], batch_size: int, *, many_kernels: bool) -> dict[str, Any]:
    """Return the settings of an adaptation of U-LDA with so many slices in each step, and with many kernels or not.

    The gradient of a single slice is noisier and wants half the rate.
    """
    added = {"added_rate": _ADDED_RATE} if many_kernels else {}
    return {**settings, "learning_rate": settings["learning_rate"] * min(1.0, batch_size / 2), **added}


class Settings(BaseModel):
    """The settings of one training stage; every number has its reason.

    Attributes
    ----------
    steps
        Gradient steps.
    batch_size
        Slices per step, all of one domain.
    learning_rate
        Peak of the one-cycle schedule, for the kernels of the feature extractor.
    warm_up
        Fraction of the steps in which the rate rises.
    step_size_rate
        The step sizes, and the weights of tasks, learn this many times faster: they are few and far from their optimum.
    adapter_rate
        The adapters learn this many times faster, that is slower: their weights are that much smaller.
    adapter_rate_of_many
        The same where every domain that learns has more slices than `warped_slices`; None for no difference.
    added_rate
        The weights of kernels that a domain adds to the feature extractor learn this many times faster, unless every
        domain that learns has more slices than `warped_slices`.
    clip
        Largest norm of a gradient.
    ssim_weight
        Weight of the SSIM in the loss.
    phases
        Numbers of phases, one after the other in equal parts of the steps. None: half of all phases, three quarters,
        then all, which is faster and better than all from the start, the meaning of an empty list.
    lower_level
        ``unrolled``: T phases from zero-filling, as in the paper. ``equilibrium``: the iterates persist; a step goes on
        where the slices were left, so that the solution of the objective becomes good and not only its T-th iterate.
    chains_after
        For ``equilibrium``: the fraction of the steps before the iterates begin to persist; a good T-th iterate comes
        first, as it is learned faster.
    chains
        For ``equilibrium``: how many batches are kept; the steps visit them in turn.
    restart
        For ``equilibrium``: the probability that a visited batch is replaced by a new one, from zero-filling.
    fresh
        For ``equilibrium``: the probability of a step that trains the T-th iterate of a new batch, from zero-filling,
        and leaves the kept batches as they are. It weighs the T-th iterate against the solution without shortening
        the way that the kept batches go.
    fresh_of
        For ``equilibrium``: other values than that of `fresh`, for the batches of single domains.
    continued_phases
        For ``equilibrium``: the differentiated phases of a step that goes on with a batch.
    longest_rollout
        For ``equilibrium``: before those, 0 to this many phases without gradient.
    descent
        ``acceptance``: only descending steps are taken, in training as later. ``penalty``: every proposal is taken. In
        both, a proposal that fails to descend costs `penalty_weight` times its failure. ``none``: neither.
    accept_after
        For ``acceptance``: the fraction of the steps before the test begins; before, every proposal is taken, as with
        ``penalty``. Proposals that are taken learn faster than the gradient steps that stand in for refused ones. For
        ``equilibrium`` it begins when the iterates begin to persist, if that is earlier: what is gone on with must be
        a point that the solver reaches.
    penalty_weight
        Weight in the loss of the failures to descend, relative to what a gradient step as long would gain.
    penalise_kept
        For ``equilibrium``: whether failures cost anything in a batch that is gone on with. Close to a stationary point
        nothing is to gain, and the failures become most of the loss.
    common
        The probability of a step with the mean of the adapters and step sizes of the sources in place of those of its
        domain: what a new domain starts from is then trained, too. Only in step 1, of methods with adapters.
    mean_after
        From this fraction of the steps on, what is validated, and what the training ends with, is the mean of the
        parameters of all steps since; 1 for the last ones alone. A mean serves two aims that pull to and fro.
    keep_best
        End with the parameters of the best validation, by the mean PSNR of all domains, instead of the last ones; those
        of the start take part. Adaptations always do.
    shares
        Where the best validation wins, as in adaptations: after the last step these shares of the way from the first
        parameters to the last ones are validated; they and the end compete with the start as far as they are clearly
        better, by more than the standard error of the gain. No other validation does then.
    warp
        The probability of a slice of a step to be turned (up to 15 degrees), scaled (between 0.86 and 1.16) and sheared
        by chance, each time anew, so that few slices are not learned by heart.
    warped_slices
        Nothing is warped where a domain has more slices than this: many are not learned by heart.
    seed
        Seed of everything random.
    validate_every, checkpoint_every, log_every
        In steps; 0 for never. A row of the log holds the mean loss since the row before.
    patience
        Stop after this many validations without a better one; 0 for never.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(500, ge=1)
    batch_size: int = Field(4, ge=1)
    learning_rate: float = Field(5e-3, gt=0)
    warm_up: float = Field(0.1, ge=0, le=1)
    step_size_rate: float = Field(5.0, gt=0)
    adapter_rate: float = Field(0.003, gt=0)
    adapter_rate_of_many: float | None = Field(None, gt=0)
    added_rate: float = Field(1.0, gt=0)
    clip: float = Field(1.0, gt=0)
    ssim_weight: float = Field(0.01, ge=0)
    phases: tuple[int, ...] | None = None
    lower_level: Literal["unrolled", "equilibrium"] = "unrolled"
    chains_after: float = Field(0.6, ge=0, le=1)
    chains: int = Field(8, ge=1)
    restart: float = Field(0.3, gt=0, le=1)
    fresh: float = Field(0.0, ge=0, lt=1)
    fresh_of: dict[str, Annotated[float, Field(ge=0, lt=1)]] = {}
    continued_phases: int = Field(8, ge=1)
    longest_rollout: int = Field(20, ge=0)
    descent: Literal["acceptance", "penalty", "none"] = "acceptance"
    accept_after: float = Field(0.67, ge=0, le=1)
    penalty_weight: float = Field(0.03, ge=0)
    penalise_kept: bool = True
    common: float = Field(0.4, ge=0, le=1)
    mean_after: float = Field(1.0, ge=0, le=1)
    keep_best: bool = False
    shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    warp: float = Field(0.0, ge=0, le=1)
    warped_slices: int = Field(50, ge=0)
    seed: int = Field(0, ge=0)
    validate_every: int = Field(100, ge=0)
    checkpoint_every: int = Field(100, ge=0)
    log_every: int = Field(10, ge=0)
    patience: int = Field(0, ge=0)

    def for_slices(self, n_slices: int) -> Settings:
        """Return the settings for a domain of so many slices.

        Many are not warped, may teach the adapter faster, and teach the weights of added kernels no faster than others.

        Examples
        --------
        >>> settings = Settings(warp=0.5, adapter_rate=0.001, adapter_rate_of_many=0.003, added_rate=4)
        >>> [(s.warp, s.adapter_rate, s.added_rate) for s in (settings.for_slices(50), settings.for_slices(51))]
        [(0.5, 0.001, 4.0), (0.0, 0.003, 1.0)]
        """
        if n_slices <= self.warped_slices:
            return self
        adapter_rate = self.adapter_rate_of_many or self.adapter_rate
        return self.model_copy(update={"warp": 0.0, "adapter_rate": adapter_rate, "added_rate": 1.0})

    @model_validator(mode="after")
    def _check_phases(self) -> Settings:
        if any(n < 1 for n in self.phases or ()):
            raise ValueError("every number of phases must be at least 1")
        return self


class SourceSettings(Settings):
    """The settings of step 0 and step 1, which warp few slices by default."""

    __doc__ = Settings.__doc__  # the table of all keys is made of it

    warp: float = Field(0.5, ge=0, le=1)


def read_settings(values: dict[str, Any]) -> Settings:
    """Check settings from a file; an unknown key is an error that suggests the nearest known one.

    Examples
    --------
    >>> read_settings({"step": 3})
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: unknown setting 'step'; did you mean 'steps'?
    """
    return checked(Settings, values)


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
        if isinstance(key, str):
            kind = parts_in(annotations_of(kind)[key])[0]
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
