"""An experiment as it stands in its file: domains, methods, sizes, draws, and two scales to run it at.

A scale may have domains of its own: `Experiment.at` returns the experiment as it is at a scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt, model_validator

from ulda.errors import UldaError
from ulda.io.documents import read_yaml
from ulda.methods import CLASSICAL
from ulda.methods.registry import method_title
from ulda.training.settings import STRICT, checked

FOLDER = Path(__file__).parent / "definitions"
ScaleName = Literal["bench", "paper"]
Measure = Literal["beyond", "descent", "similarity"]
"""Quality at multiples of T, what the phases do, or how alike the features of two trainings are."""


SUBJECTS = "subjects"
"""What counts as a subject where a domain does not say."""


class DomainEntry(BaseModel):
    """A domain of an experiment.

    Attributes
    ----------
    name
        Its name in the tables and in the models.
    data
        The stem of its file, or its folder, in the folder of the data; by default the name.
    ratio
        The fraction of lines that is sampled.
    mask_seed
        Seed of the mask.
    picture_subjects
        Every picture of a folder of pictures is a subject of its own; else they are the slices of one subject.
    enlarge
        Slices smaller than the side are enlarged by zero-filling their k-space; else they are refused.
    subjects_are
        What counts as a subject in its data, in words; only for readers.
    """

    model_config = STRICT

    name: str = Field(min_length=1, pattern=r"^\w[\w -]*$")
    data: str = ""
    ratio: float = Field(0.2, gt=0, le=1)
    mask_seed: int = Field(0, ge=0)
    picture_subjects: bool = False
    enlarge: bool = False
    subjects_are: str = SUBJECTS

    @property
    def source(self) -> str:
        """The stem of the file."""
        return self.data or self.name


class Variant(BaseModel):
    """A method as an experiment runs it.

    Attributes
    ----------
    label
        Its name in the tables and of its files, of letters, digits, ``_``, ``.``, ``-`` and spaces; by default that of
        the method.
    method
        The method: a learned one of the registry, or a classical one.
    preset
        The preset it starts from, for U-LDA and the methods that share its network; by default the method's own.
    sizes
        Its sizes, where they differ from those of the preset or of the method.
    train, adapt
        Settings of its training and of its adaptations, where they differ from those of the preset or of the method.
    transfer
        Take it to the targets; else it is trained and tested on the sources alone.
    measure
        What is measured beside the scores; see `ulda.experiments.measures`.
    compare_with
        The variant whose features ``similarity`` compares with those of this one; it is trained before.
    trained_as
        The variant whose training it takes over, of the same method: only the adaptation differs.
    """

    model_config = STRICT

    label: str = Field("", pattern=r"^(\w[\w. -]*)?$")
    method: str
    preset: str | None = None
    sizes: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)
    adapt: dict[str, Any] = Field(default_factory=dict)
    transfer: bool = True
    measure: tuple[Measure, ...] = ()
    compare_with: str = ""
    trained_as: str = ""

    @property
    def name(self) -> str:
        """The label, or the method."""
        return self.label or self.method

    @property
    def is_learned(self) -> bool:
        """Whether there is something to train."""
        return self.method not in CLASSICAL


class Scale(BaseModel):
    """What an experiment costs, and what it is run on where that differs from the other scale.

    Attributes
    ----------
    side
        Pixels of a side.
    steps, batch_size
        Gradient steps of a training, for every method, and slices in each.
    adapt_steps
        Gradient steps of an adaptation by the number of target slices, for every method.
    sizes
        How many target slices; more than there are means all.
    draws
        How often the target slices are drawn; by their number where sizes differ, and once where it is not said.
    validation_slices
        The most slices of other subjects that a validation uses.
    source_slices
        The most slices of a source; null for all.
    test_slices
        The most slices of a domain that are reported on; null for all.
    single_coil
        Coils of k-space are combined on import to the image that k-space is then simulated from.
    title, sources, targets
        Those of the experiment at this scale; by default as it has them.
    """

    model_config = STRICT

    side: int = Field(gt=0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    adapt_steps: dict[int, int]
    draws: PositiveInt | dict[int, PositiveInt] = 1
    validation_slices: int = Field(8, ge=0)
    source_slices: int | None = Field(None, ge=1)
    test_slices: int | None = Field(None, ge=1)
    single_coil: bool = False
    title: str = ""
    sources: tuple[DomainEntry, ...] = ()
    targets: tuple[DomainEntry, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of target slices."""
        return tuple(self.adapt_steps)

    def draws_of(self, size: int) -> int:
        """Return how often so many target slices are drawn."""
        return self.draws if isinstance(self.draws, int) else self.draws.get(size, 1)

    @model_validator(mode="after")
    def _draws_are_of_sizes(self) -> Scale:
        unknown = set() if isinstance(self.draws, int) else set(self.draws) - set(self.sizes)
        if unknown:
            raise ValueError(f"there are draws of {unknown.pop()} target slices, but no steps for them")
        return self


class Experiment(BaseModel):
    """An experiment.

    Attributes
    ----------
    name, title
        Its name for the commands, and in a sentence.
    family
        Experiments of one family share one folder of runs: what they have in common is trained once.
    sources, targets
        The domains of step 1 and of step 2.
    variants
        The methods.
    reference
        The variant that the others are compared with.
    scales
        How large it is run.
    paper
        What the paper prints for its targets: PSNR and SSIM in per cent by method and target. It belongs beside a
        target of the same name; a domain that is a source here and a target there has no number.
    paper_sources
        The same for the sources of the paper.
    """

    model_config = STRICT

    name: str
    title: str
    family: str = ""
    sources: tuple[DomainEntry, ...] = Field(min_length=1)
    targets: tuple[DomainEntry, ...] = Field(min_length=1)
    variants: tuple[Variant, ...] = Field(min_length=1)
    reference: str = "ulda"
    scales: dict[ScaleName, Scale]
    paper: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    paper_sources: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_differ(self) -> Experiment:
        domains = [(*self.sources, *self.targets)]
        domains += [
            (*(scale.sources or self.sources), *(scale.targets or self.targets)) for scale in self.scales.values()
        ]
        for what, names in (
            *(("domains", [entry.name for entry in entries]) for entries in domains),
            ("methods", [variant.name for variant in self.variants]),
        ):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ValueError(f"two {what} have the name {twice[0]}")
        if self.reference not in [variant.name for variant in self.variants]:
            raise ValueError(f"the reference {self.reference} is not among the methods")
        return self

    @model_validator(mode="after")
    def _measures_are_possible(self) -> Experiment:
        learned = [variant.name for variant in self.variants if variant.is_learned]
        for variant in self.variants:
            if variant.measure and not variant.is_learned:
                raise ValueError(f"{variant.name} learns nothing, so there is nothing to measure beside its scores")
            if ("similarity" in variant.measure) != bool(variant.compare_with):
                raise ValueError(f"{variant.name} needs both, the measure similarity and compare_with, or neither")
            if variant.compare_with and variant.compare_with not in set(learned) - {variant.name}:
                raise ValueError(f"{variant.name} is compared with {variant.compare_with}, which is no other variant")
        return self

    @model_validator(mode="after")
    def _trainings_can_be_taken_over(self) -> Experiment:
        learned = {variant.name: variant for variant in self.variants if variant.is_learned}
        for variant in self.variants:
            if not variant.trained_as:
                continue
            other = learned.get(variant.trained_as)
            if other is None or other.trained_as or other.method != variant.method:
                raise ValueError(
                    f"{variant.name} takes over the training of {variant.trained_as}, which has none of that method"
                )
            if variant.train or variant.measure or not variant.transfer:
                raise ValueError(f"{variant.name} takes over a training, so it has no settings or measures of its own")
        return self

    @property
    def titles(self) -> dict[str, str]:
        """The name of each variant for people: its label, or the title of its method."""

        def title(variant: Variant) -> str:
            if variant.label or not variant.is_learned:
                return variant.name
            return method_title(variant.method, variant.preset)

        return {variant.name: title(variant) for variant in self.variants}

    def variant(self, name: str) -> Variant:
        """Return a variant by its name."""
        found = [variant for variant in self.variants if variant.name == name]
        if not found:
            known = ", ".join(variant.name for variant in self.variants)
            raise UldaError(f"{self.name} has no method {name!r}; it has: {known}")
        return found[0]

    def domain(self, name: str) -> DomainEntry:
        """Return a domain by its name."""
        domains = {entry.name: entry for entry in (*self.sources, *self.targets)}
        if name not in domains:
            raise UldaError(f"{self.name} has no domain {name!r}; it has: {', '.join(domains)}")
        return domains[name]

    def scale(self, name: str) -> Scale:
        """Return a scale by its name."""
        for known, scale in self.scales.items():
            if known == name:
                return scale
        raise UldaError(f"{self.name} has no scale {name!r}; it has: {', '.join(self.scales)}")

    def at(self, name: str) -> Experiment:
        """Return the experiment as it is at a scale: with the domains and the title of that scale, and no other scale.

        Examples
        --------
        >>> [entry.name for entry in load_experiment("cross-anatomy").at("paper").targets]
        ['cardiac', 'prostate']
        """
        scale = self.scale(name)
        own = {key: getattr(scale, key) for key in ("title", "sources", "targets") if getattr(scale, key)}
        return self.model_copy(update=own | {"scales": {name: scale}})


def experiment_names() -> list[str]:
    """Return the names of the experiments that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_experiment(name_or_file: str | Path) -> Experiment:
    """Read an experiment by its name, or from a file of one's own.

    Examples
    --------
    >>> load_experiment("cross-anatomy").targets[0].name
    'cardiac'
    """
    path = Path(name_or_file)
    if str(name_or_file) in experiment_names():
        path = FOLDER / f"{name_or_file}.yaml"
    if not path.exists():
        raise UldaError(
            f"there is no experiment {str(name_or_file)!r} and no file of that name; "
            f"there are: {', '.join(experiment_names())}"
        )
    values = read_yaml(path)
    try:
        return checked(Experiment, values)
    except UldaError as error:
        raise UldaError(f"{path.name}: {error}") from error
