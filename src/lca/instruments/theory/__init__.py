"""The paper's theorems, measured on a run: every term, the bounds as printed, and the bounds that hold.

`losses` are the bounded losses, `bounds` the terms and right sides, `divergence` the distance of Gaussians, `measure`
one classifier and `runs` a whole run. docs/theory.md has the formulas.
"""
