"""Damage: corruptions and perturbations, image in, image out."""
