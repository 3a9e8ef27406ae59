"""Heads: what turns features into classes, and how they are brought up to date on class statistics."""
