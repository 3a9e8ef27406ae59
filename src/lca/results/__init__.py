"""Results: what runs left behind, read and written in one place."""
