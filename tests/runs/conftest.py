"""Runs of these tests use the tiny transformer."""

import pytest

import tiny


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield
