"""Results of runs that never were, with all that a report reads."""

import json

from lca.config import Recipe
from lca.evaluation.accuracy import AccuracyRecord
from lca.files import FORMAT


def made(correct, *, seed=1, sizes=(2, 2), images=10, classes=None, method="im", source="digits", **more):
    """Results with these branches: `correct` maps a branch to right answers by class, after each task."""
    classes = list(classes or [f"class {number}" for number in range(sum(sizes))])
    total = [images] * len(classes)
    recipe = Recipe().dump()
    recipe |= {"name": "made", "seed": seed, "method": {**recipe["method"], "name": method}}
    return {
        "format": FORMAT,
        "recipe": recipe,
        "data": {
            "source": source,
            "sha256": "d" * 64,
            "class_order": classes,
            "task_sizes": list(sizes),
            "train_images": total,
            "test_images": total,
        },
        "backbone": {"name": "vit", "sha256": "b" * 64},
        "versions": {"lca": "1.2.3"},
        "machine": {"device": "cpu", "name": "a machine", "precision": "fp32", "exact": "false"},
        "branches": {
            branch: {
                "correct": rows,
                "metrics": AccuracyRecord(rows, total, list(sizes)).metrics(),
                "storage_bytes": {"heads": 1_500_000},
            }
            for branch, rows in correct.items()
        },
        "storage_bytes": {"heads": 1_500_000},
        "seconds": {"finetune": 10.0, "align other": 5.0, "evaluate": 2.0},
        **more,
    }


def packed(path, *cells):
    """A pack of (label, results) pairs; returns its path."""
    entries = [
        {
            "key": f"{number:012d}",
            "label": label,
            "seed": results["recipe"]["seed"],
            "source": results["data"]["source"],
            "status": "finished",
            "results": results,
        }
        for number, (label, results) in enumerate(cells)
    ]
    path.write_text(json.dumps({"format": FORMAT, "cells": entries}), encoding="utf-8")
    return path
