"""The rooms of the package and who knows whom, read from the imports: `python docs/rooms.py` prints the table of
architecture.md, `python docs/rooms.py --draw docs/rooms.svg` draws the picture."""

import argparse
import tomllib
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
WIDTH, BOX, HIGH, GAP, ASIDE = 960, 104, 30, 74, 36
"""Of the picture, a room, the distance of two floors, and how far these stand aside, in pixels."""


def floors() -> list[list[str]]:
    """The rooms of every floor, from the top: as the contract in pyproject.toml says. The ground floor is one room."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [layer.split(" | ") for layer in layers[:-1]] + [["ground"]]


def known(rooms: list[str]) -> dict[str, set[str]]:
    """The rooms whose modules each room imports, inside functions or not."""
    found: dict[str, set[str]] = defaultdict(set)
    graph = grimp.build_graph("lca", exclude_type_checking_imports=True, cache_dir=None)
    room_of = {module: _room(module, rooms) for module in graph.modules if module != "lca"}
    for module, room in room_of.items():
        found[room] |= {room_of[each] for each in graph.find_modules_directly_imported_by(module) if each in room_of}
    return {room: found[room] - {room} for room in rooms}


def _room(module: str, rooms: list[str]) -> str:
    name = module.split(".")[1].strip("_").replace("main", "cli")
    return name if name in rooms else "ground"


def table() -> str:
    """A Markdown table, a room a line."""
    plan = floors()
    rooms = [room for floor in plan for room in floor]
    of = known(rooms)
    known_by = {room: [each for each in rooms[:-1] if each in of[room]] for room in rooms[:-1]}
    lines = [f"| {room} | {', '.join(others) or 'no other room'} |" for room, others in known_by.items()]
    return "\n".join(["| room | knows, besides the ground floor |", "| --- | --- |", *lines]) + "\n"


def picture() -> str:
    """An SVG: a row a floor, and a line to every room that is not known through another one anyway."""
    plan = floors()
    of = known([room for floor in plan for room in floor])
    places = {
        room: ((number + 0.5) * WIDTH / len(floor) + (-1) ** row * ASIDE, 20 + row * GAP)
        for row, floor in enumerate(plan)
        for number, room in enumerate(floor)
    }
    lines, boxes = [], []
    for room, others in of.items():
        through = {far for other in others for far in _below(other, of)}
        for other in sorted(others - through):
            (x, y), (to_x, to_y) = places[room], places[other]
            half = (to_y - y - HIGH) / 2
            lines.append(
                f'<path d="M{x:.0f} {y + HIGH} C{x:.0f} {y + HIGH + half:.0f} {to_x:.0f} {to_y - half:.0f} '
                f'{to_x:.0f} {to_y}"/>'
            )
    for room, (x, y) in places.items():
        boxes.append(f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HIGH}" rx="5"/>')
        boxes.append(f'<text x="{x:.0f}" y="{y + 20}">{room}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {20 + len(plan) * GAP}" '
        'font-family="sans-serif" font-size="14" text-anchor="middle">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n'
        '<g fill="none" stroke="#7986cb">\n'
        + "\n".join(lines)
        + '\n</g>\n<g fill="#e8eaf6" stroke="#3f51b5">\n'
        + "\n".join(box for box in boxes if box.startswith("<rect"))
        + '\n</g>\n<g fill="#1a237e">\n'
        + "\n".join(box for box in boxes if box.startswith("<text"))
        + "\n</g>\n</svg>\n"
    )


def _below(room: str, of: dict[str, set[str]]) -> set[str]:
    """All rooms that are known through a room."""
    return of[room] | {far for other in of[room] for far in _below(other, of)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", type=Path, metavar="FILE", help="write the picture instead of printing the table")
    target = parser.parse_args().draw
    if target is None:
        print(table(), end="")
    else:
        target.write_text(picture())
