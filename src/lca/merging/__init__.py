"""Merging: what becomes of the tensors that each task tuned."""
