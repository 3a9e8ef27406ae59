"""What a run did to its features and classes: how far the backbone moved, and how far classes overlap.

`runs` measures a run whose models were kept, `show` makes tables and a figure of it. docs/theory.md has the formulas.
"""
