"""Models outside: export and the hub."""
