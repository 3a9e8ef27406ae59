"""Every list names everything there is, and says something about each."""

import pytest

from lca.backbones import PHOTOS, embedded_names
from lca.data.sources import sources
from lca.merging.operators import operators
from lca.methods import methods
from lca.recipe_files import recipe_names
from lca.tuning import tuners

LISTS = {
    "methods": list(methods),
    "tuners": [*tuners, "peft:NAME"],
    "operators": list(operators),
    "datasets": list(sources),
    "recipes": recipe_names(),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_list(lca, what):
    code, out, _ = lca(what)
    assert code == 0
    assert [line for line in out.splitlines() if not line.startswith(" ")] == LISTS[what]
    for name in LISTS[what]:
        text = out.partition(f"{name}\n    ")[2].partition("\n")[0]
        assert len(text) > 20, name


def test_the_methods_say_what_they_need(lca):
    out = lca("methods")[1]
    entries = {name: " ".join(out.partition(f"{name}\n    ")[2].split()) for name in ("im", "joint", "mos")}
    assert "Needs all images at once" in entries["joint"][:400]
    assert entries["im"].startswith(methods["im"].info.title)
    assert "Keeps no images" in entries["im"][:400]
    assert "per answer: one per task." in entries["mos"][:500]
    assert "Stores" in entries["im"]


@pytest.mark.parametrize("name", list(methods))
def test_every_option_of_a_method_is_described(lca, name):
    out = " ".join(lca("methods", name)[1].split())
    for key in methods[name].Options.model_fields.keys() - {"name"}:
        said = out.partition(f"method.{key} ")[2].partition(" By default ")[0]
        assert said.endswith("."), f"nothing is said of method.{key}"


def test_a_method_made_in_a_running_python_can_be_listed(lca, monkeypatch):
    made = {"Options": methods["ease"].Options, "__name__": "made"}
    exec("class Made(Options):\n    name: str = 'ease'\n    alpha: float = 0.5\n", made)
    monkeypatch.setattr(methods["ease"], "Options", made["Made"])
    code, out, _ = lca("methods", "ease")
    assert code == 0
    assert "By default 0.5." in " ".join(out.split())


def test_one_method_with_its_options(lca):
    code, out, _ = lca("methods", "slca")
    assert code == 0
    assert "slow learner" in out
    text = " ".join(out.split())
    assert "method.align Branches on the one trunk" in text, "said in a class that it builds on"
    assert "By default [slca]." in text
    assert "method.head" in text
    assert "'bias': True" in text
    assert "method.name" not in text
    code, _, err = lca("methods", "slcaa")
    assert code == 2
    assert "did you mean 'slca'" in err


def test_the_methods_count_what_they_store(lca):
    small = lca("methods", "ease", "--backbone", embedded_names()[0], "--images", "20")[1]
    code, out, _ = lca("methods", "--backbone", "vit_base_patch16_224.augreg_in21k_ft_in1k", "--images", "500")
    assert code == 0
    entries = {name: " ".join(out.partition(f"{name}\n    ")[2].split()) for name in ("simplecil", "ease")}
    assert "Stores 3.08 kB a class, 0 bytes a task, 308 kB in all." in entries["simplecil"]  # (768 + 1) x 4
    assert "4.76 MB a task" not in small  # an adapter of rank 64
    assert "Stores" in small
    ease = 10 * 1_189_632 * 4 + 100 * 10 * 769 * 4
    assert f"{ease / 1e6:.3g} MB in all" in entries["ease"]
    assert lca("methods", "--backbone", "vit_bse")[0] == 2
    other = " ".join(lca("methods", "simplecil", "--backbone", "resnet18")[1].split())
    assert "Stores 2.05 kB a class" in other  # (512 + 1) x 4
    assert "it needs a vision transformer, which resnet18 is not." in " ".join(
        lca("methods", "im", "--backbone", "resnet18")[1].split()
    )


def test_the_tuners_count_what_they_train(lca):
    code, out, _ = lca("tuners", "--backbone", "vit_base_patch16_224.augreg_in21k_ft_in1k")
    assert code == 0
    counts = {"adapter": "1,189,632", "ssf": "205,824", "vpt": "46,080", "full": "85,798,656", "none": "0"}
    for name, count in counts.items():
        assert f"{count} parameters" in " ".join(out.partition(f"{name}\n    ")[2].split())[:300], name
    small = lca("tuners", "--backbone", embedded_names()[0])[1]
    assert "85,798,656" not in small
    other = " ".join(lca("tuners", "--backbone", "resnet18")[1].split())
    assert "full Every parameter of the backbone. 11,176,512 parameters by default." in other
    assert other.count("It needs a vision transformer, which resnet18 is not.") == len([*tuners]) - 2
    code, _, err = lca("tuners", "--backbone", "vit_bse")
    assert code == 2
    assert "timm has no model 'vit_bse'" in err


def test_backbones(lca):
    code, out, _ = lca("backbones")
    assert code == 0
    assert set(embedded_names()) < set(out.splitlines())
    text = " ".join(out.split())
    base = text.partition("vit_base_patch16_224.augreg_in21k_ft_in1k ")[2].partition(" once.")[0]
    # 86,567,656 values with the head, 35.1 / 2.51 billion operations
    assert base.endswith(
        f"85.8 million parameters, sees 224 px, 14 times the compute of {PHOTOS}, about 346 MB to download"
    )
    assert f"{PHOTOS} Embedded: for photos" in text
    assert "5.5 million parameters, sees 224 px, no download." in text
    convnext = text.partition("convnext_tiny.fb_in22k_ft_in1k ")[2].partition(" mobilenetv3")[0]
    assert convnext.endswith("Tuning none or full: it is no vision transformer.")
    assert text.count("it is no vision transformer") == 2


def test_suggested_backbones_exist():
    import timm

    from lca.cli.lists import SUGGESTED

    assert all(timm.list_pretrained(name) == [name] for name in SUGGESTED)


def test_searching_backbones(lca):
    code, out, _ = lca("backbones", "--search", "deit_tiny*")
    assert code == 0
    assert "deit_tiny_patch16_224.fb_in1k" in out.splitlines()
    assert all(line.startswith("deit_tiny") for line in out.splitlines())
    assert "(tuning none or full)" not in lca("backbones", "--search", "vit_small_patch16_224*")[1]
    others = lca("backbones", "--search", "vit_small_patch16_dinov3*")[1].splitlines()
    assert others  # of another class than vision transformers that tensors can be put into
    assert all(line.endswith("  (tuning none or full)") for line in others)
    assert "resnet18.a1_in1k  (tuning none or full)" in lca("backbones", "--search", "resnet18*")[1].splitlines()
    code, out, err = lca("backbones", "--search", "zzz*")
    assert (code, out) == (2, "")
    assert "timm has no pre-trained model 'zzz*'" in err
