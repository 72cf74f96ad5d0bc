"""The zero-filled reconstruction: what the measurement shows without any prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ulda.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics


@dataclass(frozen=True)
class ZeroFilled(Method):
    """The adjoint of the measurement, :math:`A^H y`.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import ZeroFilled
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> image = torch.ones(2, 32, 32, dtype=torch.complex64)
    >>> physics = CartesianMRI(cartesian_mask(32, 1.0))
    >>> torch.allclose(ZeroFilled()(physics.A(image), physics), image, atol=1e-5)
    True
    """

    name: ClassVar[str] = "zero-filled"

    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Apply the adjoint; see `Method` for the shapes."""
        return physics.A_adjoint(y)
