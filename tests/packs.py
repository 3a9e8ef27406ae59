"""Results of runs that never were, with all that a report reads."""

import json
from itertools import count

from lca.evaluation.accuracy import AccuracyRecord
from lca.files import FORMAT
from lca.recipe import Recipe
from lca.results.classifiers import classifiers
from lca.results.metrics import metrics_of_counts
from lca.results.reading import Run


def made(correct, *, seed=1, sizes=(2, 2), images=10, classes=None, method="im", source="digits", domains=(), **more):
    """Results with these branches: `correct` maps a branch to right answers by class, after each task; in domains to
    those by class of every domain."""
    classes = list(classes or [f"class {number}" for number in range(sizes[0] if domains else sum(sizes))])
    total = [images] * sum(sizes)
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
            **({"domains": list(domains)} if domains else {}),
            "train_images": total,
            "test_images": total,
        },
        "backbone": {"name": "vit", "sha256": "b" * 64},
        "versions": {"lca": "1.2.3"},
        "machine": {"device": "cpu", "name": "a machine", "precision": "fp32", "exact": "false"},
        "branches": {
            branch: {
                "correct": rows,
                "metrics": metrics_of_counts(AccuracyRecord(rows, total, list(sizes), domains)),
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


SEEDS = count()


def results(curves, seconds=None, stored=2_000_000, source="digits", evaluate="test"):
    """Results of a seed of its own; `curves` maps branches to the accuracy of every task after each task."""
    tasks, images = max(map(len, curves.values())), 10_000
    correct = {
        branch: [[round(share * images / 100)] * number for number, share in enumerate(curve, start=1)]
        for branch, curve in curves.items()
    }
    found = made(correct, seed=next(SEEDS), sizes=(1,) * tasks, images=images, source=source)
    found["recipe"]["data"]["evaluate"] = evaluate
    found["seconds"] = seconds or {"finetune": 3.0, "evaluate": 1.0}
    found["storage_bytes"] = {"heads": stored // 2, "tuned": stored // 2}
    for branch in found["branches"].values():
        del branch["storage_bytes"]
    return found


def rows_of(pairs):
    """The classifiers of pairs of label and results."""
    return [row for rows in classifiers([Run(*pair) for pair in pairs]).values() for row in rows]
