"""What is about the paper: its claims and what was measured of them, its figures, and studies of quality."""
