"""Evaluation: from predictions to accuracies. It reads predictions and knows nothing of methods."""
