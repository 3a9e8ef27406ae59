"""The notebooks run from the first cell to the last, and are kept without outputs."""

from pathlib import Path

import nbformat
import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))


def test_there_are_notebooks():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    assert [*tmp_path.iterdir()] == [], "a notebook leaves nothing behind"
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert {"teach-from-photos": "test images are right", "add-a-method": "nearest_mean: "}[path.stem] in said
    assert "torch was imported before lca" not in said
