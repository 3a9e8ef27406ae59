"""Pages are made of templates that lie beside this file."""

from pathlib import Path
from typing import Any

from lca.errors import needs


def render(name: str, **facts: Any) -> str:
    """A page of a template; whatever is put into it is escaped, and what it lacks is an error."""
    with needs("a page", "jinja2"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(name).render(**facts)
