"""Runs: the experiment loop, its folder, the trunk cache and sweeps."""
