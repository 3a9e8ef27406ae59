import pytest
import torch
from torch.nn import functional

from lca.errors import LcaError
from lca.heads.growing import (
    CosineOptions,
    GrowingHeads,
    LinearHead,
    LinearOptions,
    choose_head,
    heads,
    linear_heads,
)

KINDS = ["linear", "mlp", "cosine", "prototype"]
FEATURES = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def options_of(name, **options):
    """Options of a head; a bias only where it has one."""
    fields = heads[name].Options.model_fields
    return heads[name].Options(**{key: value for key, value in options.items() if key != "bias" or key in fields})


def grown(name="linear", sizes=(2, 3), **options):
    growing = GrowingHeads(6, options_of(name, **options))
    for number, size in enumerate(sizes):
        growing.append(growing.new_head(size, random(number)))
    return growing


def test_the_options_name_every_registered_head():
    assert set(heads) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_logits_grow_and_old_ones_stay(name):
    growing = grown(name)
    before = growing(FEATURES)
    growing.append(growing.new_head(4, random(9)))
    after = growing(FEATURES)
    assert growing.sizes == [2, 3, 4]
    assert after.shape == (7, 9)
    assert torch.equal(after[:, :5], before)


@pytest.mark.parametrize("biases", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("kind", list(heads))
def test_logits_at_once_are_the_same(kind, biases):
    growing = GrowingHeads(6, heads[kind].Options())
    for number, bias in enumerate(biases):
        options = options_of(kind, bias=bias, init="uniform")
        growing.append(growing.new_head(2 + number, random(number), options))
    torch.testing.assert_close(growing.at_once(FEATURES), growing(FEATURES))


@pytest.mark.parametrize("trained", [True, False])
def test_cosines_at_once_are_the_same_with_scales_of_their_own(trained):
    growing = GrowingHeads(6, CosineOptions())
    for number, scale in enumerate((3.0, 20.0)):
        options = CosineOptions(scale=scale, train_scale=trained)
        growing.append(growing.new_head(2 + number, random(number), options))
    torch.testing.assert_close(growing.at_once(FEATURES), growing(FEATURES))
    growing.double()  # the factors of sin' are large, and single precision is rounded otherwise on other machines
    for found, parameter in zip(gradients(growing, growing.at_once), gradients(growing, growing), strict=True):
        torch.testing.assert_close(found, parameter)


def gradients(growing, logits):
    growing.requires_grad_(True)
    features = FEATURES.to(next(growing.parameters()))
    return torch.autograd.grad(logits(features).sin().sum(), [*growing.parameters()])


def test_no_head_gives_no_logits():
    assert grown(sizes=())(FEATURES).shape == (7, 0)


def test_appended_heads_are_frozen():
    assert not any(parameter.requires_grad for parameter in grown("mlp").parameters())


def test_linear_by_hand():
    growing = grown(bias=True)
    growing.tasks[1].bias.data += torch.arange(3)
    expected = [FEATURES @ head.weight.T + head.bias for head in growing.tasks]
    torch.testing.assert_close(growing(FEATURES), torch.cat(expected, 1))


def test_a_new_linear_head_has_the_published_spread():
    weight = LinearHead(500, 40, LinearOptions(), random()).weight.detach()
    assert float(weight.std()) == pytest.approx(0.02, rel=0.02)
    assert float(weight.mean()) == pytest.approx(0, abs=1e-3)


def test_cosine_depends_on_the_direction_only_and_scales():
    growing = grown("cosine", scale=5.0)
    torch.testing.assert_close(growing(10 * FEATURES), growing(FEATURES))
    expected = functional.cosine_similarity(FEATURES[:, None], growing.tasks[0].weight[None], dim=2)
    torch.testing.assert_close(growing(FEATURES)[:, :2], 5 * expected)


def test_a_margin_is_taken_from_the_own_cosine_and_from_no_answer():
    labels = torch.tensor([0, 1, 1, 0])
    for margin in (0.0, 0.3):
        head = grown("cosine", scale=5.0, margin=margin).tasks[0]
        logits = torch.randn(4, head.classes, generator=torch.Generator().manual_seed(0))
        expected = logits.clone()
        for row, label in enumerate(labels.tolist()):
            expected[row, label] -= 5.0 * margin
        assert torch.equal(head.with_margin(logits, labels), expected)
        assert torch.equal(head(FEATURES), grown("cosine", scale=5.0).tasks[0](FEATURES))
    plain = grown("linear").tasks[0]
    assert torch.equal(plain.with_margin(logits, labels), logits)


def test_mlp_by_hand_and_its_hidden_width():
    growing = grown("mlp", sizes=(2,), hidden=11)
    head = growing.tasks[0]
    hidden = functional.gelu(FEATURES @ head.hidden_weight.T + head.hidden_bias)
    assert hidden.shape == (7, 11)
    torch.testing.assert_close(growing(FEATURES), hidden @ head.output.weight.T)
    assert grown("mlp").tasks[0].hidden_weight.shape == (6, 6)


@pytest.mark.parametrize("name", KINDS)
def test_keeping_classes_keeps_their_logits(name):
    growing = grown(name, sizes=(4,), bias=True)
    before = growing(FEATURES)
    growing.tasks[0].keep_classes(torch.tensor([3, 1]))
    torch.testing.assert_close(growing(FEATURES), before[:, [3, 1]])
    assert growing.sizes == [2]


@pytest.mark.parametrize("name", KINDS)
def test_rows_from_means_recognise_their_means(name):
    growing = grown(name, sizes=())
    means = torch.eye(6)[:3] * 4
    growing.append_from_means(means, random())
    assert growing(means).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("name", "bias"), [*((kind, False) for kind in KINDS), ("linear", True)])
def test_a_class_alone_does_not_win_by_what_all_features_share(name, bias):
    """The means lie far from zero and near each other, as those of a transformer do."""
    shared = torch.full((1, 6), 5.0)
    means = shared + torch.eye(6)[:3]
    growing = grown(name, sizes=(), bias=bias)
    growing.append_from_means(means[:2], random(), shared)
    growing.append_from_means(means[2:], random(), shared)
    assert growing(means).argmax(1).tolist() == [0, 1, 2]
    growing = grown(name, sizes=(), bias=bias)
    growing.append_from_means(means[:2], random(), shared)
    growing.append_from_means(means[2:], random())
    assert name in {"cosine", "prototype"} or growing(means).argmax(1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_the_first_class_of_all_stands_at_zero_when_it_comes_alone(name):
    growing, means = grown(name, sizes=()), torch.full((1, 6), 5.0)
    growing.append_from_means(means, random(), means)
    assert growing(FEATURES).abs().max() < 1e-5


def test_rows_from_means_are_as_long_as_the_others():
    growing = grown()
    lengths = torch.cat([head.weight.norm(dim=1) for head in growing.tasks])
    growing.append_from_means(torch.randn(2, 6, generator=random(5)), random())
    torch.testing.assert_close(growing.tasks[-1].weight.norm(dim=1), lengths.mean().expand(2))


def count(growing, chosen):
    return len(growing.trainable(chosen))


def test_the_trainable_heads():
    growing = grown(sizes=(2, 2, 2))
    weights = [head.weight for head in growing.tasks]
    assert [id(each) for each in growing.trainable("all")] == [id(each) for each in weights]
    assert growing.trainable("none") == []
    assert [id(each) for each in growing.trainable((-1, 0))] == [id(weights[0]), id(weights[2])]
    assert count(growing, (-1, 2)) == 1
    assert count(growing, (7, -9)) == 0
    assert count(grown("prototype"), "all") == 0


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_state_and_load_are_inverse(name, bias):
    growing = grown(name, bias=bias, **{"mlp": {"hidden": 4}, "linear": {}}.get(name, {"scale": 7.0}))
    part, meta = growing.state()
    twin = GrowingHeads(6, growing.options)
    twin.load(part, meta)
    assert torch.equal(twin(FEATURES), growing(FEATURES))
    assert [type(head) for head in twin.tasks] == [type(head) for head in growing.tasks]
    assert not any(parameter.requires_grad for parameter in twin.parameters())


def test_a_copy_is_independent():
    growing = grown()
    twin = growing.copy()
    before = growing(FEATURES)
    twin.tasks[0].weight.data.zero_()
    assert torch.equal(growing(FEATURES), before)


def test_loading_heads_of_another_width_says_so():
    part, meta = grown().state()
    with pytest.raises(LcaError, match=r"head 0: weight has shape \(2, 6\) of torch.float32, expected \(2, 9\)"):
        GrowingHeads(9, LinearOptions()).load(part, meta)


def test_extend_takes_only_the_newer_heads():
    older, newer = grown(sizes=(2,)), grown(sizes=(2, 3))
    older.tasks[0].weight.data.fill_(1)
    older.extend(newer)
    assert older.sizes == [2, 3]
    assert (older.tasks[0].weight == 1).all()
    assert torch.equal(older.tasks[1].weight, newer.tasks[1].weight)
    older.tasks[1].weight.data.zero_()
    assert (newer.tasks[1].weight != 0).any()


def test_heads_of_given_rows():
    weight, bias = torch.randn(5, 6, generator=random(3)), torch.randn(5, generator=random(4))
    built = linear_heads(weight, bias, [2, 3], grown("cosine"))
    assert built.sizes == [2, 3]
    torch.testing.assert_close(built(FEATURES), FEATURES @ weight.T + bias)
    part, meta = built.state()
    twin = GrowingHeads(6, CosineOptions())
    twin.load(part, meta)
    assert torch.equal(twin(FEATURES), built(FEATURES))


def test_heads_are_drawn_from_the_generator():
    assert torch.equal(grown().tasks[0].weight, grown().tasks[0].weight)
    assert not torch.equal(
        LinearHead(6, 2, LinearOptions(), random(0)).weight, LinearHead(6, 2, LinearOptions(), random(1)).weight
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("label", range(6))
def test_a_forgotten_row_goes_and_the_others_stay(name, bias, label):
    growing = grown(name, sizes=(2, 1, 3), bias=bias)
    for head in growing.tasks:  # biases of zero would hide a mistake
        for parameter in head.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=random(3))
    before = growing(FEATURES)
    stored = {key: tensor.clone() for key, tensor in growing.state()[0].items()}
    old = growing.state()
    growing.forget(label)
    kept = [each for each in range(6) if each != label]
    torch.testing.assert_close(growing(FEATURES), before[:, kept])
    assert growing.sizes == {0: [1, 1, 3], 1: [1, 1, 3], 2: [2, 3]}.get(label, [2, 1, 2])
    assert all(torch.equal(tensor, stored[key]) for key, tensor in old[0].items()), "a state taken before is untouched"
    twin = GrowingHeads(6, growing.options)
    twin.load(*growing.state())
    assert torch.equal(twin(FEATURES), growing(FEATURES))
    assert not any(parameter.requires_grad for parameter in growing.parameters())
    growing.load(*old)
    torch.testing.assert_close(growing(FEATURES), before)


def test_forgetting_all_rows_and_a_row_too_many():
    growing = grown()
    for size in range(5, 0, -1):
        with pytest.raises(IndexError, match="no such label"):
            growing.forget(size)
        growing.forget(0)
    assert (growing.sizes, len(growing.state()[0])) == ([], 0)
    assert growing(FEATURES).shape == (7, 0)
    growing.append(growing.new_head(2, random()))
    assert growing(FEATURES).shape == (7, 2)


def test_how_rows_start():
    """Linear rows are normal with 0.02, cosine rows uniform within ±1/√d, at any width; `init` says otherwise."""
    for width in (48, 300):
        bound = width**-0.5
        for name, usual in (("linear", "normal"), ("mlp", "normal"), ("cosine", "uniform")):
            for init in (None, "normal", "uniform"):
                growing = GrowingHeads(width, options_of(name, init=init, bias=True))
                head = growing.new_head(200, random())
                weight = (head.output if name == "mlp" else head).weight.detach()
                uniform = (init or usual) == "uniform"
                assert float(weight.std()) == pytest.approx(bound / 3**0.5 if uniform else 0.02, rel=0.05)
                assert (weight.abs().max() <= bound) or not uniform
        bias = LinearHead(width, 200, LinearOptions(bias=True, init="uniform"), random()).bias.detach()
        assert float(bias.std()) == pytest.approx(bound / 3**0.5, rel=0.2)
        assert not LinearHead(width, 200, LinearOptions(bias=True), random()).bias.any()


@pytest.mark.parametrize(("label", "other"), [(0, 1), (1, 3), (3, 0)])
@pytest.mark.parametrize("name", ["linear", "cosine", "mlp"])
def test_a_row_of_two_points_between_them_and_is_as_long(name, label, other):
    """Heads of 2 and 3 classes; of an mlp's the rows of two heads cannot be compared."""
    options = choose_head({"name": name, "bias": True} if name == "linear" else name)
    growing, draws = GrowingHeads(4, options), torch.Generator().manual_seed(0)
    for classes in (2, 3):
        growing.append(growing.new_head(classes, draws))
    for head in growing.tasks:
        if name == "linear":
            head.bias.data.normal_(generator=draws)
    before = dict(growing.state()[0])
    copied = {key: tensor.clone() for key, tensor in before.items()}

    def rows(what):
        last = [head.output if name == "mlp" else head for head in growing.tasks]
        return torch.cat([getattr(head, what).data for head in last])

    weight, bias = rows("weight"), rows("bias") if name == "linear" else None
    growing.merge(label, other)
    assert sum(growing.sizes) == 4
    place = label - (label > other)
    found = rows("weight")
    apart = name == "mlp" and (label < 2) != (other < 2)
    direction = weight[label] if apart else weight[label] + weight[other]
    length = weight[label].norm() if apart else (weight[label].norm() + weight[other].norm()) / 2
    torch.testing.assert_close(found[place], direction / direction.norm() * length)
    others = [row for row in range(5) if row not in (label, other)]
    assert torch.equal(found[[row for row in range(4) if row != place]], weight[others])
    if bias is not None:
        torch.testing.assert_close(rows("bias")[place], (bias[label] + bias[other]) / 2)
    assert all(torch.equal(before[key], copied[key]) for key in copied), "what may be kept somewhere stays"
