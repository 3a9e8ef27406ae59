"""Damaged images: common corruptions (-C) and perturbation sequences (-P), generated for any images.

The definitions and constants are those of Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations" (ICLR 2019); the code is our own. docs/robustness.md says how the outcome differs from
the published files.
"""
