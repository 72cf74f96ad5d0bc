"""How a model is trained, checked before anything starts."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ulda.errors import UldaError


class Settings(BaseModel):
    """The settings of one training stage; every number has its reason.

    Attributes
    ----------
    steps
        Gradient steps.
    batch_size
        Slices per step, all of one domain.
    learning_rate
        Peak of the one-cycle schedule; above 5e-3 the safeguarded network collapses to no regularisation.
    warm_up
        Fraction of the steps in which the rate rises.
    step_size_rate
        The step sizes learn this many times faster: they are few and far from their optimum.
    clip
        Largest norm of a gradient.
    ssim_weight
        Weight of the SSIM in the loss.
    phases
        Numbers of phases, one after the other in equal parts of the steps; empty for all phases from the start.
    lower_level
        ``unrolled``: T phases from zero-filling, as in the paper. ``equilibrium``: the iterates persist; a step goes on
        where the slices were left, so that the solution of the objective becomes good and not only its T-th iterate.
    chains
        For ``equilibrium``: how many batches are kept; the steps visit them in turn.
    restart
        For ``equilibrium``: the probability that a visited batch is replaced by a new one, from zero-filling.
    continued_phases
        For ``equilibrium``: the differentiated phases of a step that goes on with a batch.
    longest_rollout
        For ``equilibrium``: before those, 0 to this many phases without gradient.
    descent
        ``acceptance``: only descending steps are taken, in training as later. ``penalty``: every proposal is taken and
        failing to descend costs `penalty_weight`. ``none``: neither.
    seed
        Seed of everything random.
    validate_every, checkpoint_every
        In steps; 0 for never.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(500, ge=1)
    batch_size: int = Field(4, ge=1)
    learning_rate: float = Field(3e-3, gt=0)
    warm_up: float = Field(0.2, ge=0, le=1)
    step_size_rate: float = Field(2.0, gt=0)
    clip: float = Field(1.0, gt=0)
    ssim_weight: float = Field(0.01, ge=0)
    phases: tuple[int, ...] = ()
    lower_level: Literal["unrolled", "equilibrium"] = "unrolled"
    chains: int = Field(8, ge=1)
    restart: float = Field(0.3, gt=0, le=1)
    continued_phases: int = Field(8, ge=1)
    longest_rollout: int = Field(20, ge=0)
    descent: Literal["acceptance", "penalty", "none"] = "acceptance"
    penalty_weight: float = Field(0.03, ge=0)
    seed: int = Field(0, ge=0)
    validate_every: int = Field(100, ge=0)
    checkpoint_every: int = Field(100, ge=0)

    @model_validator(mode="after")
    def _check_phases(self) -> Settings:
        if any(n < 1 for n in self.phases):
            raise ValueError("every number of phases must be at least 1")
        return self


def read_settings(values: dict[str, Any]) -> Settings:
    """Check settings from a file; an unknown key is an error that suggests the nearest known one.

    Examples
    --------
    >>> read_settings({"step": 3})
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: unknown setting 'step'; did you mean 'steps'?
    """
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, Settings.model_fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(Settings.model_fields)}"
            raise UldaError(f"unknown setting {name!r}; {hint}") from error
        raise UldaError(f"the setting {name or 'phases'} is wrong: {first['msg'].lower()}") from error
