from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from ulda.errors import UldaError
from ulda.methods import DnCn
from ulda.models.extractor import OWN_KERNELS, ChannelMixing
from ulda.training import ULDA, Architecture, base_fingerprint, load_adapter, load_base, save_adapter, save_base
from ulda.training.files import domain_fingerprint
from ulda.training.network import OWN_KERNELS_OF_MANY

SMALL = Architecture(width=4, depth=2, phases=3)


def test_a_base_comes_back_whole(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["brain", "prostate"], seed=3)
    save_base(model, tmp_path / "base", {"data": "none"})
    again = load_base(tmp_path / "base")
    assert again.architecture == SMALL
    assert again.domains == ("brain", "prostate")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert json.loads((tmp_path / "base" / "model.json").read_text())["card"] == {"data": "none"}
    with pytest.raises(UldaError, match="exists already"):
        save_base(model, tmp_path / "base")


@pytest.mark.parametrize("own", ["mixing and many kernels", "mixing and kernels", "mixing", "layer", "nothing"])
def test_an_adapter_is_small_and_fits_its_base_only(tmp_path: Path, own: str) -> None:
    model = ULDA(sources=["brain"])
    save_base(model, tmp_path / "base")
    fingerprint = base_fingerprint(model)
    model.add_domain("knee")
    if own == "mixing and many kernels":
        model.give_mixing("knee", rank=OWN_KERNELS_OF_MANY)
    elif own == "mixing and kernels":
        model.give_mixing("knee")
    elif own == "mixing":
        model.give_mixing("knee", rank=0)
    elif own == "layer":
        model.give_own_layer("knee")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".knee." in name:
                parameter.add_(0.1)
    model.shorten("knee")
    assert base_fingerprint(model) == fingerprint
    save_adapter(model, "knee", tmp_path / "knee", {"n_slices": 5})
    assert sum(path.stat().st_size for path in (tmp_path / "knee").iterdir()) < 50_000
    fresh = load_base(tmp_path / "base")
    assert load_adapter(fresh, tmp_path / "knee") == "knee"
    assert dict(fresh.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))
    with pytest.raises(UldaError, match="load it on the base it was trained on"):
        load_adapter(ULDA(sources=["brain"], seed=1), tmp_path / "knee")


def test_shortening_rounds_many_kernels_to_half_precision_and_leaves_few() -> None:
    model = ULDA(SMALL, ["brain"])
    for name, rank in (("knee", OWN_KERNELS_OF_MANY), ("hip", OWN_KERNELS)):
        model.add_domain(name)
        model.give_mixing(name, rank)
    with torch.no_grad():
        for weights in model.get_submodule("mixings.knee.weights").parameters():
            weights.add_(0.01)
        tiny = model.get_parameter("adapters.knee.layer.imag")
        tiny.mul_(1e-6)  # half precision would make it zero
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name in ("knee", "hip", "brain"):
        model.shorten(name)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert {name.split(".")[0] for name in changed} == {"mixings", "adapters"}
    assert all(".knee." in name for name in changed)
    assert "adapters.knee.layer.real" in changed
    assert "adapters.knee.layer.imag" not in changed
    for name in changed:
        assert torch.equal(model.get_parameter(name), before[name].half().float())
        torch.testing.assert_close(model.get_parameter(name), before[name], rtol=1e-3, atol=1e-7)


def test_shortening_what_has_learned_nothing_keeps_the_precision_of_the_model() -> None:
    model = ULDA(SMALL, ["brain"]).double()
    model.give_mixing("brain", OWN_KERNELS_OF_MANY)
    model.double().shorten("brain")
    assert cast(ChannelMixing, model.mixings["brain"]).rank == OWN_KERNELS
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize("rank", [-1, 10**9, "4", None])
def test_an_adapter_with_an_impossible_rank_is_refused(tmp_path: Path, rank: object) -> None:
    model = ULDA(SMALL, ["brain"])
    model.add_domain("knee")
    model.give_mixing("knee")
    save_adapter(model, "knee", tmp_path)
    facts = json.loads((tmp_path / "adapter.json").read_text())
    (tmp_path / "adapter.json").write_text(json.dumps(facts | {"rank": rank}))
    with pytest.raises(UldaError, match="an adapter cannot add"):
        load_adapter(model, tmp_path)


def test_an_adapter_from_before_there_were_kernels_is_read(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["brain"])
    model.add_domain("knee")
    model.give_mixing("knee", rank=0)
    save_adapter(model, "knee", tmp_path)
    facts = json.loads((tmp_path / "adapter.json").read_text())
    del facts["rank"]
    (tmp_path / "adapter.json").write_text(json.dumps(facts))
    assert load_adapter(model, tmp_path) == "knee"
    assert cast(ChannelMixing, model.mixings["knee"]).rank == 0


def test_a_changed_weight_of_an_adapter_is_refused(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["brain"])
    save_adapter(model, "brain", tmp_path / "brain")
    weights = tmp_path / "brain" / "adapter.safetensors"
    tensors = load_file(weights)
    tensors["adapter.layer.real"][0, 0, 1, 1] *= 1.01
    save_file(tensors, weights)
    with pytest.raises(UldaError, match=r"weights in brain are not those adapter\.json was written for"):
        load_adapter(model, tmp_path / "brain")


def test_a_model_of_another_method_is_called_one(tmp_path: Path) -> None:
    DnCn(filters=2, layers=2, cascades=1, sources=["brain"]).save(tmp_path)
    with pytest.raises(UldaError, match="holds a model of the method dncn"):
        load_base(tmp_path)


def test_an_adapter_says_whose_it_is(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["brain"])
    save_adapter(model, "brain", tmp_path)
    facts = json.loads((tmp_path / "adapter.json").read_text())
    del facts["domain"]
    (tmp_path / "adapter.json").write_text(json.dumps(facts))
    with pytest.raises(UldaError, match="does not say whose adapter it is"):
        load_adapter(model, tmp_path)


def test_all_that_reconstructs_a_domain_is_in_its_fingerprint() -> None:
    model = ULDA(SMALL, ["brain", "knee"])
    model.give_mixing("knee")
    before = {name: domain_fingerprint(model, name) for name in ("brain", "knee")}
    assert before["brain"] != before["knee"]
    for name in ("steps.knee.log_alpha", "mixings.knee.raw", "adapters.knee.layer.real"):
        changed = [key for key in dict(model.named_parameters()) if key.startswith(name.rsplit(".", 1)[0])]
        with torch.no_grad():
            model.get_parameter(changed[0]).add_(0.01)
        assert domain_fingerprint(model, "knee") not in before.values()
        assert domain_fingerprint(model, "brain") == before["brain"]


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with pytest.raises(UldaError, match=r"no model\.json"):
        load_base(base)
    save_base(ULDA(SMALL, ["brain"]), base)
    weights, facts = base / "model.safetensors", base / "model.json"
    content, text = weights.read_bytes(), facts.read_text()
    tensors = load_file(weights)
    tensors["extractor.layers.0.real"][0, 0, 0, 0] += 1
    save_file(tensors, weights)
    with pytest.raises(UldaError, match=r"not those model\.json was written for"):
        load_base(base)
    tensors.pop("extractor.layers.0.imag")
    save_file(tensors, weights)
    with pytest.raises(UldaError, match="holds other tensors"):
        load_base(base)
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(UldaError, match="cannot be read as safetensors"):
        load_base(base)
    weights.write_bytes(content)
    for wrong, message in (
        ("{", "is not JSON"),
        ("{}", "does not describe"),
        (text.replace('"version": 1', '"version": 9'), "upgrade"),
        (text.replace('"width"', '"wide"'), "does not describe a model"),
        (text.replace('"width": 4', '"width": 40000'), "describes a larger model than model.safetensors holds"),
        (text.replace('"phases": 3', '"phases": 10000000000'), "describes a larger model"),
    ):
        facts.write_text(wrong)
        with pytest.raises(UldaError, match=message):
            load_base(base)
