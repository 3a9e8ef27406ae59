import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner

from lca.errors import LcaError
from paper.contact_sheet import app, read_square


def test_a_sheet_shows_all_corruptions_and_sequences(tmp_path):
    folder = tmp_path / "photos" / "flower"
    folder.mkdir(parents=True)
    for number, image in enumerate(load_sample_images().images):
        Image.fromarray(image).save(folder / f"{number}.png")
    out = tmp_path / "new" / "sheet.png"
    result = CliRunner().invoke(
        app, [str(tmp_path / "photos"), "--out", str(out), "--size", "32", "--tile", "16", "--images", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "kB" in result.output
    with Image.open(out) as sheet:
        assert sheet.height == 18 + 19 * 19
        assert len(sheet.convert("RGB").getcolors(1 << 20)) > 1000
    small = CliRunner().invoke(app, [str(folder), "--out", str(out), "--size", "32", "--tile", "16", "--colours", "16"])
    assert small.exit_code == 0
    with Image.open(out) as sheet:
        assert len(sheet.convert("RGB").getcolors(1 << 20)) <= 16


def test_a_folder_without_images_is_said(tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(result.exception, LcaError)


@pytest.mark.parametrize("size", [(300, 500), (100, 60)])
def test_squares_of_any_image(tmp_path, size):
    Image.new("RGB", size, (10, 20, 30)).save(tmp_path / "image.png")
    square = read_square(tmp_path / "image.png", 64)
    assert square.shape == (3, 64, 64)
    assert square[:, 5, 5].tolist() == [10, 20, 30]
