"""Instruments: what is measured on finished runs and their models."""
