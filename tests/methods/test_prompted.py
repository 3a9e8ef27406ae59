"""CODA-Prompt and DualPrompt, against plain computations."""

import pytest
import torch
from torch.nn import functional

import tiny
from lca.errors import LcaError
from lca.methods.coda_prompt import _orthogonal
from lca.runs.experiment import run
from lca.tuning.insertion import inserting

TASKS = ({"3": 6, "7": 5}, {"1": 6}, {"0": 5, "9": 6})
CODA = {"components": 3, "tokens": 2, "layers": (0, 1)}
DUAL = {"tokens": 2, "general_layers": (0,), "expert_layers": (1,)}


def taught(name, tasks=TASKS, **options):
    model = tiny.classifier(tiny.recipe(method={"name": name, **options}))
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts))
    return model


def views(model):
    return model.extractor.evaluation_views(tiny.images({"3": 3, "0": 3}, skip=20).pixels)


def plain_query(model):
    vit = tiny.load_tiny_backbone().vit
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(views(model)), pre_logits=True)


def prompted(model, rows):
    insertions = model.method.insertions
    with torch.no_grad(), inserting({insertions[layer]: each for layer, each in rows.items()}):
        return model.extractor.eval()(views(model))


def keyed(model, chosen):
    """The model with keys of which one or the other is nearest to each image; the first one is a hundred times as long.

    With b at right angles to a, and q b = 1 for the images of the one and -1 for those of the other, they are a + b
    and a - b: equally long before the first one is lengthened.
    """
    query = plain_query(model).double()
    apart = torch.linalg.pinv(query) @ (1 - 2 * torch.tensor(chosen, dtype=torch.float64))
    along = query.mean(0) - (query.mean(0) @ apart) / apart.square().sum() * apart
    apart = apart * along.norm() / apart.norm()
    model.method.prompts["key.0"].data = 100 * (along + apart).float()
    model.method.prompts["key.1"].data = (along - apart).float()
    return model


def prefixed(model, chosen):
    """Features with the task prefixes that are chosen for the images."""
    prompts = {name: each.detach() for name, each in model.method.prompts.items()}
    return prompted(
        model, {0: prompts["general.0"], 1: torch.stack([prompts[f"expert.1.{number}"] for number in chosen])}
    )


def test_the_backbone_and_its_tuner_stay_as_they_were():
    fresh = tiny.classifier(tiny.recipe(method={"name": "coda_prompt", **CODA}))
    for name, options in (("coda_prompt", CODA), ("dualprompt", DUAL)):
        model = taught(name, **options)
        assert all(torch.equal(model.extractor.tensors()[key], each) for key, each in fresh.extractor.tensors().items())
        torch.testing.assert_close(model.method.query(views(model)), plain_query(model), rtol=0, atol=1e-6)


def test_coda_sums_its_components_by_how_they_match_the_image():
    model, rows = taught("coda_prompt", **CODA), {}
    method, query = model.method, plain_query(model)
    for layer in (0, 1):
        prompts = torch.cat([method.prompts[f"{layer}.P.{group}"] for group in (0, 1)]).detach()
        keys = torch.cat([method.prompts[f"{layer}.K.{group}"] for group in (0, 1)]).detach()
        attention = torch.cat([method.prompts[f"{layer}.A.{group}"] for group in (0, 1)]).detach()
        assert prompts.shape == (6, 4, 24)
        rows[layer] = torch.zeros(len(query), 2, 2, 24)
        for image in range(len(query)):
            for component in range(6):
                weight = functional.cosine_similarity(query[image] * attention[component], keys[component], dim=0)
                rows[layer][image] += weight * prompts[component].reshape(2, 2, 24)
    torch.testing.assert_close(model.method.embed(views(model), ""), prompted(model, rows), rtol=0, atol=1e-5)
    assert not torch.allclose(prompted(model, rows), plain_query(model), atol=1e-3)


def test_coda_trains_the_newest_components_only():
    first = taught("coda_prompt", TASKS[:1], **CODA).method.prompts
    later = taught("coda_prompt", **CODA).method.prompts
    assert set(first) < set(later)
    assert all(torch.equal(first[name], later[name]) for name in first)


def test_new_components_are_orthogonal_while_there_is_room():
    random = torch.Generator().manual_seed(0)
    first = _orthogonal(torch.randn(3, 8, generator=random), [])
    second = _orthogonal(torch.randn(4, 8, generator=random), [first])
    both = torch.cat([first, second])
    torch.testing.assert_close(both @ both.T, torch.eye(7), rtol=0, atol=1e-5)
    crowded = _orthogonal(torch.randn(4, 8, generator=random), [both])
    torch.testing.assert_close(crowded.norm(dim=1), torch.ones(4))


def test_dualprompt_takes_the_prefix_of_the_nearest_key():
    """By cosine: the longer key, which has the larger product with every query, gets one image of six."""
    model = keyed(taught("dualprompt", **DUAL), chosen := [1, 0, 1, 1, 1, 1])
    query = plain_query(model)
    assert (query @ torch.stack(model.method.pool("key")).T).argmax(1).tolist() == [0] * 6
    torch.testing.assert_close(model.method.embed(views(model), ""), prefixed(model, chosen), rtol=0, atol=1e-5)
    for other in ([0] * 6, [1] * 6, [1 - each for each in chosen]):
        assert not torch.allclose(prefixed(model, chosen), prefixed(model, other), atol=1e-3)


@pytest.mark.parametrize(("chosen", "voted"), [([0, 1, 1, 1, 0, 1], 1), ([0, 1, 0, 0, 0, 1], 0)])
def test_a_batch_of_dualprompt_votes_if_it_is_asked_to(chosen, voted):
    """All images get the prefix that most of them would choose alone, be it the first or the last."""
    model = keyed(taught("dualprompt", **DUAL, batch_vote=True), chosen)
    together = model.method.embed(views(model), "")
    torch.testing.assert_close(together, prefixed(model, [voted] * 6), rtol=0, atol=1e-5)
    alone = torch.cat([model.method.embed(each[None], "") for each in views(model)])
    torch.testing.assert_close(alone, prefixed(model, chosen), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pull", [0.0, 0.1, 3.0])
def test_the_loss_of_dualprompt(pull):
    """Cross-entropy with the prefix of the task, whatever the keys say, less the cosines with the task's key."""
    model = keyed(taught("dualprompt", **DUAL, pull=pull), [0, 0, 0, 0, 1, 1])
    query, labels = plain_query(model), torch.tensor([0, 0, 0, 1, 1, 1])
    head = model.method.heads.new_head(2, torch.Generator().manual_seed(0))
    key = model.method.prompts["key.1"].detach()
    cosines = [float(each @ key / (each.norm() * key.norm())) for each in query]
    assert sum(cosines) / 6 > 0.1
    logits = head(prefixed(model, [1] * 6))
    expected = functional.cross_entropy(logits, labels) - pull * sum(cosines) / 6
    loss, found = model.method.training.loss(views(model), labels, head, None)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-5)


def test_the_published_pool_of_dualprompt_offers_what_no_task_has_trained():
    usual, pool = (taught("dualprompt", **DUAL, reference_pool=on) for on in (False, True))
    names = [f"{what}.{number}" for what in ("key", "expert.1") for number in (0, 1)]
    spare = [f"spare.{what}.{number}" for what in ("key", "expert.1") for number in range(2, 10)]
    assert set(usual.method.prompts) == {"general.0", *names}
    assert set(pool.method.prompts) == {"general.0", *names, *spare}
    assert set(pool.method.trained()) == {"general.0", "key.1", "expert.1.1"}
    query = plain_query(pool)
    before = prefixed(keyed(pool, [0, 0, 0, 0, 1, 1]), [0, 0, 0, 0, 1, 1])
    for name in spare[:8]:
        pool.method.prompts[name].data = -query.mean(0)
    torch.testing.assert_close(pool.method.embed(views(pool), ""), before, rtol=0, atol=1e-5)
    pool.method.prompts["spare.key.7"].data = 0.01 * query[5]
    rows = pool.method.rows(query)[1]
    assert torch.equal(rows, pool.method.prompts["spare.expert.1.7"].expand_as(rows))
    assert not torch.allclose(pool.method.embed(views(pool), ""), before, atol=1e-3)


def test_the_published_pool_is_used_up_entry_by_entry():
    model = taught("dualprompt", TASKS[:1], **DUAL, reference_pool=True)
    method, keys = model.method, {}
    for task in range(1, 11):
        keys |= {name: each.detach().clone() for name, each in method.prompts.items() if name.startswith("spare.key")}
        method.grow(task)
        assert len(method.pool("key")) == task + 1
        assert len(method._offered("key")) == len(method._offered("expert.1")) == max(task + 1, 10)
        assert sum(each.numel() for each in method.prompts.values()) == method.values(task + 1)
    assert all(torch.equal(method.prompts[f"key.{number}"], keys[f"spare.key.{number}"]) for number in range(1, 10))


def test_a_new_task_of_dualprompt_starts_from_the_last_prefix_and_leaves_it():
    first = taught("dualprompt", TASKS[:1], **DUAL)
    model = taught("dualprompt", TASKS[:1], **DUAL)
    model.method.grow(2)
    assert torch.equal(model.method.prompts["expert.1.1"], first.method.prompts["expert.1.0"])
    later = taught("dualprompt", **DUAL).method.prompts
    assert torch.equal(later["expert.1.0"], first.method.prompts["expert.1.0"])
    assert torch.equal(later["key.0"], first.method.prompts["key.0"])
    assert not torch.equal(later["general.0"], first.method.prompts["general.0"])


def test_a_key_is_pulled_towards_its_images():
    def closeness(pull):
        model = taught("dualprompt", TASKS[:1], **{**DUAL, "pull": pull})
        query = model.method.query(model.extractor.evaluation_views(tiny.images(TASKS[0]).pixels))
        return float(functional.cosine_similarity(query, model.method.prompts["key.0"].detach()[None]).mean())

    assert closeness(5.0) > closeness(0.0) + 0.01


CHANGES = {
    "coda_prompt": (CODA, [{"components": 4}, {"tokens": 3}, {"layers": (1,)}, {"head": {"bias": False}}]),
    "dualprompt": (
        DUAL,
        [
            {"tokens": 3},
            {"general_layers": (1,), "expert_layers": (0,)},
            {"head": {"bias": False}},
            {"reference_reshape": True},
            {"reference_pool": True},
        ],
    ),
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, (_, changes) in CHANGES.items() for change in changes]
)
def test_every_option_changes_a_number(name, change):
    base = CHANGES[name][0]
    one, two = taught(name, **base), taught(name, **{**base, **change})
    images = tiny.images({"3": 3, "0": 3}, skip=20)
    assert not torch.allclose(one.logits(one.features(images)), two.logits(two.features(images)), atol=1e-5)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_the_published_reshape_of_dualprompt(count):
    """The first half gets keys and keys, the second values and values, the middle one of an odd batch both."""
    method = taught("dualprompt", TASKS[:1], **DUAL, reference_reshape=True).method
    keys, values = method.prompts["expert.1.0"].detach()
    assert not torch.equal(keys, values)
    query = torch.randn(count, 24, generator=torch.Generator().manual_seed(0))
    for rows in (method.rows(query), method.training_rows(query)):
        assert torch.equal(rows[0], method.prompts["general.0"])
        for image in range(count):
            kind = "first" if image < count // 2 else "second" if image >= (count + 1) // 2 else "middle"
            first, second = {"first": (keys, keys), "second": (values, values), "middle": (keys, values)}[kind]
            assert torch.equal(rows[1][image], torch.stack([first, second])), (count, image)


def gradients(model):
    """The prompts that get a gradient of the training loss; the backbone and its tuner get none."""
    method = model.method
    for each in method.prompts.values():
        each.grad = None
    head = method.heads.new_head(2, torch.Generator().manual_seed(0))
    loss, _ = method.training.loss(views(model), torch.tensor([0, 0, 0, 1, 1, 1]), head, None)
    loss.backward()
    assert all(each.grad is not None for each in head.parameters())
    assert all(each.grad is None for each in model.extractor.parameters())
    return {name for name, each in method.prompts.items() if each.grad is not None and each.grad.any()}


def test_gradients_reach_what_a_task_trains():
    model = taught("coda_prompt", **CODA)
    assert gradients(model) == {f"{layer}.{what}.1" for layer in (0, 1) for what in "PKA"}
    assert set(model.method.trained()) == {f"{layer}.{what}.1" for layer in (0, 1) for what in "PKA"}
    model = taught("dualprompt", **DUAL)
    assert gradients(model) == {"general.0", "expert.1.1", "key.1"}
    assert set(model.method.trained()) == {"general.0", "expert.1.1", "key.1"}


@pytest.mark.parametrize("name", ["coda_prompt", "dualprompt"])
def test_a_task_of_one_class_adds_no_prompts(name):
    before, after = (taught(name, TASKS[:count], **CHANGES[name][0]) for count in (1, 2))
    assert set(before.method.prompts) == set(after.method.prompts)
    assert all(torch.equal(before.method.prompts[key], each) for key, each in after.method.prompts.items())
    features = after.method.features(tiny.images(TASKS[1]), "")
    row, away = after.method.heads.tasks[1].weight[0], features.mean(0) - before.method.centre.means[0]
    torch.testing.assert_close(row / row.norm(), functional.normalize(away, dim=0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["coda_prompt", "dualprompt"])
def test_prompts_are_in_the_state(name):
    model, fresh = taught(name, **CHANGES[name][0]), taught(name, (), **CHANGES[name][0])
    assert not fresh.method.prompts
    state = model.state()
    fresh.load_state(state)
    assert torch.equal(fresh.method.embed(views(model), ""), model.method.embed(views(model), ""))
    for each in (*model.method.prompts.values(), *fresh.method.prompts.values()):
        each.data.zero_()
    assert all(each.any() for each in state.parts["prompts"].values()), "the state has tensors of its own"


# Blocks


def test_layers_beyond_the_depth_are_clipped_with_a_warning(caplog):
    model = taught("coda_prompt", TASKS[:1], components=2)
    assert list(model.method.insertions) == [0, 1]
    assert "layers [2, 3, 4] are clipped to 1: the transformer has 2 blocks" in caplog.messages


def test_layers_as_shares_of_the_depth(caplog):
    coda = taught("coda_prompt", (), layers=(0.0, 0.5)).method
    dual = taught("dualprompt", (), general_layers=(0.3,), expert_layers=(0.9,)).method
    assert list(coda.insertions) == list(dual.insertions) == [0, 1]
    assert (dual.general, dual.expert) == ([0], [1])
    assert not caplog.messages


@pytest.mark.parametrize(
    ("layers", "general", "expert"),
    [
        ({}, [0], [1]),
        ({"general_layers": (0,)}, [0], [1]),
        ({"general_layers": (0,), "expert_layers": (0, 1)}, [0], [1]),
        ({"general_layers": (5,), "expert_layers": (0, 5)}, [1], [0]),
        ({"general_layers": (0, 1), "expert_layers": (0,)}, [0], [1]),
        ({"general_layers": (1,), "expert_layers": (1,)}, [1], []),
    ],
)
def test_dualprompt_in_two_blocks_has_both_kinds_where_it_can(layers, general, expert):
    method = taught("dualprompt", TASKS[:1], **{"tokens": 2, **layers}).method
    assert (method.general, method.expert) == (general, expert)
    names = {f"general.{layer}" for layer in general} | {f"expert.{layer}.0" for layer in expert}
    assert set(method.prompts) == names | {"key.0"}


@pytest.mark.parametrize(
    ("name", "key"), [("coda_prompt", "layers"), ("dualprompt", "general_layers"), ("dualprompt", "expert_layers")]
)
@pytest.mark.parametrize("layers", [(), (-1,), (1.5,)])
def test_layers_that_are_neither_are_refused(name, key, layers):
    with pytest.raises(LcaError, match=rf"{key}: expected block numbers from 0 or shares of the depth in \[0, 1\)"):
        tiny.recipe(method={"name": name, key: layers})


@pytest.mark.parametrize("name", ["coda_prompt", "dualprompt", "l2p"])
@pytest.mark.parametrize("tuner", ["prefix", "prompt", "vpt"])
def test_tuners_that_insert_prompts_are_refused(name, tuner):
    tuning = {"name": tuner, **tiny.SMALL_TUNING[tuner]}
    with pytest.raises(LcaError, match=f"'{name}' brings prompts of its own, and tuner '{tuner}' inserts others"):
        tiny.classifier(tiny.recipe(method=tiny.method_section(name), tuning=tuning))


@pytest.mark.parametrize("name", ["coda_prompt", "dualprompt"])
def test_a_tuner_of_the_peft_library_is_left_alone(name):
    tuning = {"name": "peft:ia3", **tiny.SMALL_TUNING["peft:ia3"]}
    model = tiny.classifier(tiny.recipe(method=tiny.method_section(name), tuning=tuning))
    before = model.extractor.tensors()
    model.learn(tiny.task(0, {"3": 4, "7": 4}))
    assert before
    assert all(torch.equal(each, before[key]) for key, each in model.extractor.tensors().items())


@pytest.mark.parametrize("name", ["l2p", "dualprompt", "coda_prompt"])
def test_no_image_is_queried_twice(tmp_path, name):
    """The query of a test image is computed once, the prompted pass after every task."""
    recipe = tiny.recipe(method=tiny.method_section(name), keep_models="none")
    with tiny.tiny_backbone(), tiny.counted_passes() as passes:
        data = run(recipe, tmp_path / "run")["data"]
    train, test = (
        [int(each.sum()) for each in torch.tensor(data[key]).split(data["task_sizes"])]
        for key in ("train_images", "test_images")
    )
    assert data["task_sizes"] == [3, 1, 2, 4]
    of_training = 2 * sum(train)  # for the mean of all features, and for the head of the class that comes alone
    assert passes["images"] == of_training + sum(test) + sum(sum(test[: task + 1]) for task in range(4))


@pytest.mark.parametrize("name", ["l2p", "dualprompt", "coda_prompt"])
def test_a_known_query_gives_the_same_features(name):
    model = taught(name, **tiny.SMALL_METHOD[name])
    images, method = tiny.images({"3": 40, "0": 40}, skip=20), model.method
    expected = method.features(images, "test")
    query = method.features(images, "test", ["query"])
    with tiny.counted_passes() as passes:
        found = method.features(images, "test", known=[query])
    assert passes["images"] == len(images)
    assert torch.equal(found, expected)
    other = method.features(images, "test", known=[-query])
    assert not torch.allclose(other, expected, atol=1e-4)
