"""What all attacks use: loading, comparing answers to the bit, counting."""

import json
from contextlib import contextmanager

import numpy as np
import torch

import tiny
from lca import ContinualClassifier, LcaError
from lca.files import sealed

NASTY = (
    None, True, -1, 0, 3, 10**6, 2**31, 10**30, 0.5, -1e308, 1e308, "", "x", "../../x", "$HOME", "/dev/zero", "a\x00b",
    "\x1b[2J", [], [1], [[]] * 3, {}, {"name": "x"},
)  # fmt: skip

PICTURE = (np.arange(16 * 16 * 3) * 7 % 256).astype(np.uint8).reshape(16, 16, 3)


def load(folder, **options):
    with tiny.tiny_backbone():
        return ContinualClassifier.load(folder, **options)


def asked():
    return tiny.images({"0": 2, "3": 2}, skip=10).pixels


def answers(model):
    """All that a model says of images, to the last bit."""
    features = model.features(asked())
    of = {
        branch: (model.probabilities(features, branch), model.method.percentiles(features, branch))
        for branch in model.method.branches()
    }
    return list(model.classes), of


def same(ours, theirs):
    def equal(one, two):
        return one is two if one is None or two is None else torch.equal(one, two)

    return (
        ours[0] == theirs[0]
        and ours[1].keys() == theirs[1].keys()
        and all(all(map(equal, ours[1][branch], theirs[1][branch])) for branch in ours[1])
    )


@contextmanager
def refused(tries):
    """Either it works, or there is one short error."""
    try:
        yield
    except LcaError as error:
        if len(str(error)) > 3000:
            raise AssertionError("that is no short error") from error
        tries["refused in one error"] += 1


def leaves(content, place=()):
    """The places of all values in JSON, the containers included."""
    yield place
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield from leaves(value, (*place, key))


def with_value(content, place, value):
    """A copy with another value at a place."""
    content = json.loads(json.dumps(content))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return content


def reseal(folder, change, seal=True):
    """Change the JSON of a model, with the hash that goes with it, as a stranger can."""
    path = folder / "state.json"
    content = json.loads(path.read_text())
    changed = change({key: content[key] for key in ("parts", "meta")})
    path.write_text(json.dumps(sealed(changed) if seal else {"format": 2, **changed}))


def finite(folder, tries):
    """What was written on purpose is refused, or is a model like any other; whether it is."""
    with refused(tries):
        model = load(folder)
        for branch in model.method.branches():
            for answer in model.predict(PICTURE, branch):
                json.dumps(answer.probabilities, allow_nan=False)
        tries["answered with finite numbers"] += 1
        return True
    return False


def swapped(tensor, draws):
    """A tensor that is none of this model."""
    spoilt = tensor.clone()
    if spoilt.numel():
        spoilt.view(-1)[0] = draws.choice([float("nan"), float("inf"), -1e30])
    return draws.choice(
        [
            tensor.double(),
            tensor.half(),
            tensor.long(),
            tensor[None],
            tensor[:0],
            torch.zeros(3, 5),
            spoilt,
            torch.ones(1),
        ]
    )
