"""The state of a training run in one safetensors file, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.documents import parse_json
from ulda.io.tensors import write_tensors
from ulda.io.untrusted import reading, regular_file

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(
    path: Path, module: nn.Module, optimiser: torch.optim.Adam, extra: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    """Write the parameters, the state of the optimiser, and the tensors and facts that the loop needs to continue."""
    tensors: dict[str, Tensor] = {f"extra/{name}": value.contiguous() for name, value in extra.items()}
    for name, parameter in module.named_parameters():
        tensors[f"parameter/{name}"] = parameter.detach().contiguous()
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{moment}/{name}"] = value.contiguous()
    with atomic_output(path, overwrite=True) as temporary:
        write_tensors(temporary, tensors, {"facts": json.dumps(facts)})


def load_checkpoint(
    path: Path, module: nn.Module, optimiser: torch.optim.Adam
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore what `save_checkpoint` wrote and return its facts and extra tensors."""
    advice = "remove it to start anew"
    with reading(path, "a checkpoint", advice), safe_open(regular_file(path), framework="pt") as file:
        facts: dict[str, Any] = parse_json(file.metadata()["facts"], "what it says of itself")
        # a copy, as tensors in the file are not aligned in memory, on which the last bits of a sum may depend
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    try:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(tensors[f"parameter/{name}"])
                # the optimiser counts its steps on the CPU
                moments = {
                    moment: tensors[f"{moment}/{name}"].to("cpu" if moment == "step" else parameter.device)
                    for moment in _MOMENTS
                    if f"{moment}/{name}" in tensors
                }
                if moments:
                    optimiser.state[parameter] = moments
    except (KeyError, RuntimeError) as error:
        raise UldaError(f"the checkpoint {path.name} belongs to another model; remove it to start anew") from error
    device = next(module.parameters()).device
    extra = {
        name.removeprefix("extra/"): value.to(device) for name, value in tensors.items() if name.startswith("extra/")
    }
    return facts, extra
