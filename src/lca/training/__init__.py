"""Training: the one loop that fine-tunes a task."""
