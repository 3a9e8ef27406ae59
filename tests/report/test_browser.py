"""The page in a real browser. `make test-browser` installs one."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest
from PIL import Image

import tiny
from lca.report.model_page import ModelPage
from lca.report.page import Report
from lca.results.reading import collect
from lca.runs.experiment import run
from packs import damage, made, packed

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; `make test-browser` installs it"),
]
NASTY = "<script>document.title='obeyed'</script>"


def browse(page, *options):
    """Open a page; gives its elements as text, and what the browser said on its console."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [CHROMIUM, "--headless", *root, "--disable-gpu", "--enable-logging=stderr", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def pack_page(folder):
    """Two classifiers of a pack, one of them badly named."""
    good, poor = [[9, 9], [7, 7, 7, 7]], [[8, 8], [5, 5, 6, 6]]
    cells = [
        (label, made({"default": rows}, seed=seed, classes=[NASTY, "b", "c", "d"]))
        for label, rows in (("good", good), (NASTY, poor))
        for seed in (1, 2)
    ]
    return Report("A title", 20).page(collect([packed(folder / "p.json", *cells)]))


def run_page(folder):
    """A run folder with predictions and images, beside another data set; both branches of both on damaged images."""
    branches = {"none": 60.0, "best": 70.0}
    content = tiny.recipe(
        method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]},
        training={"epochs": 1},
        keep_models="none",
    )
    with tiny.tiny_backbone():
        run(content, folder / "run")
    scores = [damage(branch, accuracy) for branch, accuracy in branches.items()]
    for each in scores:
        (folder / "run" / f"robustness-{each['branch']}.json").write_text(json.dumps(each))
    other = made({name: [[9, 9], [7, 7, 7, 7]] for name in branches}, source="folder:somewhere/with/a-long-name/photos")
    pack = packed(folder / "p.json", ("tiny", other, scores))
    return Report("A title", 20, images=True).page(collect([folder / "run", pack]))


def model_page(folder):
    """A taught model, asked about photos of its classes, of another, and of a class with a long, bad name."""
    names = {"0": NASTY, "1": "a name that is so long that it has to be broken somewhere"}
    for part, counts, skip in (("photos", {"0": 8, "1": 8, "3": 8}, 0), ("test", {"0": 6, "1": 6, "3": 6, "7": 3}, 20)):
        for name, count in counts.items():
            place = folder / part / names.get(name, name).replace("/", "-")
            place.mkdir(parents=True)
            for number, image in enumerate(tiny.images({name: count}, skip).pixels.canvas):
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number}.png")
    with tiny.tiny_backbone():
        model = tiny.classifier(tiny.recipe(method={"name": "im"}))
        model.learn(folder / "photos", effort="instant")
        model.learn(folder / "test", effort="instant", held_out=0.5)
        model.forget("7")
    for number in range(2):  # in the wrong folder
        shutil.copy(folder / "test" / "3" / f"{number}.png", folder / "test" / names["1"] / f"misplaced-{number}.png")
    return ModelPage(model, model.read(folder / "test"), folder / "test", "A title").page()


@pytest.fixture(scope="module", params=[pack_page, run_page, model_page])
def page(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(request.param(path.parent), encoding="utf-8")
    return path


def test_no_complaint_and_all_elements(page):
    elements, complaints = browse(page, "--dump-dom")
    assert complaints == []
    assert "<title>A title</title>" in elements, "no name became a script"
    if 'id="advice"' in elements:
        for name in ("advice", "classes", "confusions", "wrong", "uncertain", "calibration", "lessons"):
            assert f'id="{name}"' in elements
        assert elements.count("<svg") == 1
        return
    for name in ("data-1", "data-1-comparison", "data-1-details", "recipes", "data-1-1"):
        assert f'id="{name}"' in elements
    bars, curves, differences, each = 1, 2, 1, 2  # of each classifier the heat map and the tasks
    of_pack = bars + curves + differences + 2 * each
    if 'id="overall"' not in elements:
        assert elements.count("<svg") == of_pack
        return
    damaged, radars, in_detail = 1, 2, 2
    reliability, drift = 2, 1  # of the run, whose predictions are at hand; `none` stores no classes to drift from
    assert elements.count("<svg") == bars + 2 * (of_pack + damaged + radars + in_detail) + reliability + drift
    assert ">photos</a>" in elements, "without where it is"


@pytest.mark.parametrize("make", [run_page, model_page])
def test_pictures_of_confusions_are_shown(make, tmp_path):
    """Each is read and has a size, none is only its alternative text."""
    (tmp_path / "report.html").write_text(make(tmp_path), encoding="utf-8")
    sizes = answer(
        tmp_path / "report.html",
        "[...document.images].map((each) => each.decode().then(() => each.naturalWidth)).length + ' ' + "
        "[...document.images].filter((each) => each.complete && each.naturalWidth >= 24).length",
    )
    shown, whole = sizes.split()
    assert int(shown) == int(whole) > 0


def test_a_complaint_would_be_noticed(tmp_path):
    (tmp_path / "broken.html").write_text("<!DOCTYPE html><script>nothing.there()</script>", encoding="utf-8")
    assert browse(tmp_path / "broken.html", "--dump-dom")[1]


def answer(page, question, *options):
    """What a script would find in the page, as text."""
    asked = page.with_name("asked.html")
    asked.write_text(
        page.read_text(encoding="utf-8") + f"<script>document.title = {question}</script>", encoding="utf-8"
    )
    return re.search("<title>(.*?)</title>", browse(asked, "--dump-dom", *options)[0])[1]


def framed(page, folder, width, question):
    """What a script would find in the page, in a frame as wide as a phone, which a window cannot be."""
    content, found = html.escape(page.read_text(encoding="utf-8")), "document.querySelector('iframe').contentDocument"
    measure = html.escape(f"document.title = ((page) => {question})({found})")
    frame = f'<iframe style="width: {width}px; border: 0" srcdoc="{content}" onload="{measure}"></iframe>'
    (folder / "frame.html").write_text(f"<!DOCTYPE html><title></title>{frame}", encoding="utf-8")
    elements, _ = browse(folder / "frame.html", "--dump-dom", "--hide-scrollbars")
    return re.search("<title>(.*?)</title>", elements)[1]


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_stands_out_at_the_side(page, tmp_path, width):
    assert framed(page, tmp_path, width, "page.documentElement.scrollWidth") == str(width)


@pytest.mark.parametrize("width", [360, 1200])
def test_figures_can_be_read(page, tmp_path, width):
    """Also on a phone, where they are moved to and fro."""
    sizes = (
        "[...page.querySelectorAll('svg text')].filter((each) => each.checkVisibility()).map((each) => "
        "parseFloat(getComputedStyle(each).fontSize) * Math.hypot(each.getScreenCTM().a, each.getScreenCTM().b))"
        ".join(' ')"
    )
    found = [float(size) for size in framed(page, tmp_path, width, sizes).split()]
    assert len(found) > (10 if 'id="advice"' in page.read_text(encoding="utf-8") else 50)
    assert min(found) >= 7.9, "CSS pixels"


def test_on_a_phone_names_stay_and_what_scrolls_says_so(page, tmp_path):
    """The first cells of a table that was moved to its end are where they were; its place says that it scrolls."""
    wide = "[...page.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth + 1)"
    said = f"{wide}.map((each) => page.defaultView.getComputedStyle(each, '::before').content)"
    found = set(framed(page, tmp_path, 390, f"[...new Set({said})].join('|')").split("|"))
    assert found == {'"scrolls sideways ⟷"'}
    shaded = f"{wide}.every((each) => page.defaultView.getComputedStyle(each).backgroundImage.includes('gradient'))"
    assert framed(page, tmp_path, 390, shaded) == "true"
    moved = (
        f"{wide}.filter((each) => each.checkVisibility() && each.querySelector('tbody th')).map((each) => {{"
        "each.scrollLeft = 9999; const cell = each.querySelector('tbody th').getBoundingClientRect();"
        "return Math.round(cell.left - each.getBoundingClientRect().left); }).join(' ')"
    )
    places = framed(page, tmp_path, 390, moved).split()
    assert places, "there is a table that scrolls"
    assert {*places} == {"0"}
    quiet = "page.querySelectorAll('.results').length + ' ' + page.querySelectorAll('.scrolls .results').length"
    tables, scrolling = framed(page, tmp_path, 1300, quiet).split()
    assert int(tables) > int(scrolling) == 0, "where there is room nothing scrolls"


def test_what_is_folded_is_printed(page):
    closed = "document.querySelectorAll('details:not([open])').length"
    printing = [f"(dispatchEvent(new Event('{event}')), {closed})" for event in ("beforeprint", "afterprint")]
    before, printed, after = answer(page, f"[{closed}, {', '.join(printing)}].join()").split(",")
    assert int(before) > 0
    assert printed == "0"
    assert after == before


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(page, tmp_path, dark):
    picture = tmp_path / "page.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    browse(page, f"--screenshot={picture}", "--window-size=1200,1600", "--hide-scrollbars", scheme)
    with Image.open(picture) as image:
        assert image.size == (1200, 1600)
        grey = image.convert("L")
    paper, (low, high) = grey.getpixel((2, 2)), grey.getextrema()
    assert (paper < 50, high > 200) == (True, True) if dark else (paper > 240, low < 60) == (True, True)
    colours = "[document.body, ...document.querySelectorAll('figure')].map((each) => getComputedStyle(each).color)"
    texts = "[...document.querySelectorAll('svg [id*=axis] text')].map((each) => getComputedStyle(each).fill)"
    inks = answer(page, f"[...new Set([...{colours}, ...{texts}])].join(';')", scheme).split(";")
    radars = {
        "rgb(0, 114, 178)",
        "rgb(213, 94, 0)",
        "rgb(128, 128, 128)",
    }  # of the better one, the first or the second; of rings
    ink = "rgb(230, 233, 238)" if dark else "rgb(29, 36, 48)"
    assert {*inks} - radars == {ink}, "labels of axes as the text around them"
