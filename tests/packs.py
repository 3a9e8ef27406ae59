"""Results of runs that never were, with all that a report reads."""

import json

from lca.evaluation.accuracy import AccuracyRecord
from lca.files import FORMAT
from lca.recipe import Recipe


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


CORRUPTIONS, SEQUENCES = ("fog", "snow", "frost", "contrast"), ("tilt", "scale", "rotate")


def damage(branch, accuracy, *, corruptions=CORRUPTIONS, sequences=SEQUENCES, **more):
    """What `lca robustness` would write of a branch: clean as given, ten less at severity 1, thirty at 5, five less
    along sequences, and a flip rate of a tenth of what is wrong."""
    return {
        "branch": branch,
        "clean": accuracy,
        "images": 10,
        "generated": True,
        "corrupted": {name: {"1": accuracy - 10, "5": accuracy - 30} for name in corruptions},
        "perturbed": {name: {"accuracy": accuracy - 5, "flips": (100 - accuracy) / 10} for name in sequences},
        **more,
    }


def packed(path, *cells):
    """A pack of (label, results) pairs, or of triples with what was measured on damaged images; returns its path."""
    entries = [
        {
            "key": f"{number:012d}",
            "label": label,
            "seed": results["recipe"]["seed"],
            "source": results["data"]["source"],
            "status": "finished",
            "results": results,
        }
        | ({"robustness": damaged[0]} if damaged else {})
        for number, (label, results, *damaged) in enumerate(cells)
    ]
    path.write_text(json.dumps({"format": FORMAT, "cells": entries}), encoding="utf-8")
    return path


def results(curves, seconds=None, stored=2_000_000, source="digits", evaluate="test"):
    """The part of a results file that a table reads; `curves` maps branches to accuracies after each task."""
    return {
        "recipe": {"data": {"evaluate": evaluate}},
        "data": {"source": source},
        "branches": {
            branch: {
                "metrics": {
                    "average_accuracy": {"sample_weighted": sum(curve) / len(curve), "task_mean": curve[0]},
                    "last_accuracy": {"sample_weighted": curve[-1], "task_mean": 0.0},
                    "forgetting": None if len(curve) == 1 else curve[0] - curve[-1],
                    "after_each_task": {"sample_weighted": curve, "task_mean": curve},
                }
            }
            for branch, curve in curves.items()
        },
        "seconds": seconds or {"finetune": 3.0, "evaluate": 1.0},
        "storage_bytes": {"heads": stored // 2, "tuned": stored // 2},
    }
