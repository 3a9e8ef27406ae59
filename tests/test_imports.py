"""What a fresh interpreter has imported by when: nothing heavy comes before it is needed."""

import subprocess
import sys

from PIL import Image

HEAVY = {"matplotlib", "peft", "scipy", "sklearn", "transformers"}
ONNX = {"onnx", "onnxruntime", "onnxscript"}
FAST = ["--set", "training={epochs: 1, batch_size: 8, lr: 0.05}", "--set", "tuning={name: lora, rank: 2}"]
FAST += ["--set", "method.align=[none, best]", "--set", "device=cpu", "--quiet"]
COMMANDS = f"""
def run(*words):
    sys.argv = ["lca", *words]
    try:
        lca.cli.main()
    except SystemExit as end:
        assert not end.code, words

run("learn", "m", "a", "--backbone", "vit_pico_patch8_64", *{FAST})
run("predict", "m", "a/0/0.png", "--json")
"""
STAGES = {
    "the package": ("import lca, lca.cli", {"numpy", "timm", "torch"}),
    "a list of tuners": ("from lca.tuning import tuners; [*tuners], tuners['peft:ia3']", {"peft", "transformers"}),
    "the core": ("import lca.classifier, lca.runs.sweep, lca.methods; [*lca.methods.methods]", HEAVY),
    "what exports": ("import lca.models.export, lca.models.hub", ONNX),
    "a PNG file": ("from lca.data.decoding import decode; decode('a/0/0.png', 20)", {"pillow_heif"}),
    "a prediction on the embedded backbone": (COMMANDS, {*HEAVY, *ONNX, "pandas"}),
}
"""What is done, one after another in one process, and what must not be imported after it."""


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path):
    for name, deviation in {"0": 10, "1": 90}.items():
        (tmp_path / "a" / name).mkdir(parents=True)
        for number in range(2):
            Image.effect_noise((8, 8), deviation + number).save(tmp_path / "a" / name / f"{number}.png")
    report = "print('imported', *{name.partition('.')[0] for name in sys.modules})"
    program = "\n".join(["import sys", *(f"{code}\n{report}" for code, _ in STAGES.values())])
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("imported ")]
    for found, (stage, (_, heavy)) in zip(imported, STAGES.items(), strict=True):
        assert not found & heavy, stage
    assert {"timm", "torch"} <= imported[2]
    assert '"image": "a/0/0.png"' in done.stdout
