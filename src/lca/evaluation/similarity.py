"""How alike two backbones see the same images."""

import torch
from torch import Tensor
from torch.nn import functional


def linear_cka(one: Tensor, two: Tensor) -> float | None:
    """Linear centred kernel alignment of the features (n, p) and (n, q) of the same images.

    With X and Y the features, every column centred: ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖), Frobenius norms (Kornblith et al.:
    Similarity of Neural Network Representations Revisited, ICML 2019). Between 0 and 1; a rotation, a common factor and
    a shift of the features do not change it. It is only worth reading with more images than features: with fewer, any
    two sets of features look alike. Features that are the same for all images have none.
    """
    x, y = (features.double() - features.double().mean(0) for features in (one, two))
    size = float((x.T @ x).norm() * (y.T @ y).norm())
    return float((y.T @ x).square().sum()) / size if size else None


def mean_cosine(one: Tensor, two: Tensor) -> float | None:
    """The mean over images of cos(x, y), x and y its features (n, d) under two backbones; None for other widths."""
    if one.shape != two.shape:
        return None
    return float(functional.cosine_similarity(one.double(), two.double()).mean())


@torch.no_grad()
def similarity(one: Tensor, two: Tensor) -> dict[str, float | None]:
    """Both, as JSON."""
    return {"cka": linear_cka(one, two), "cosine": mean_cosine(one, two)}
