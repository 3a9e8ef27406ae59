"""Data: sources of images, streams of tasks, and the views of an image that a backbone sees."""
