"""The pictures and tables of docs/routing.md, from a made result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench_worker.strategies import STRATEGIES
from tests.webapp.experiments import make
from tools import routing_pictures

PICTURES = {f"routing-{name}.svg" for name in STRATEGIES}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A result of all strategies at the two corners that are read."""
    asked = make.experiment(
        vary={"field": "routing.strategy", "values": list(STRATEGIES)},
        conditions=[{"concurrency": 4, "prompt_tokens": tokens} for tokens in (128, 2048)],
    )
    measured = make.result(asked)
    measured.environment |= {"versions": {"torch": "2.13.0"}, "state": {"load_average": [1.96, 0, 0]}}
    file = tmp_path / "result.json"
    file.write_text(measured.model_dump_json(by_alias=True))
    return file


def draw(monkeypatch: pytest.MonkeyPatch, images: Path, *args: Any) -> int:
    monkeypatch.setattr(routing_pictures, "IMAGES", images)
    monkeypatch.setattr("sys.argv", ["routing_pictures", *map(str, args)])
    return routing_pictures.main()


def test_every_strategy_is_drawn_and_stands_in_both_tables(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draw(monkeypatch, tmp_path, result) == 0
    said = capsys.readouterr().out
    assert "torch 2.13.0, load 2.0" in said
    for name in STRATEGIES:
        assert len(re.findall(rf"^\| {name} \|", said, re.MULTILINE)) == 2
    assert {file.name for file in tmp_path.glob("*.svg")} == PICTURES
    # 16 · (360 µs of the layer + 50 of attention) + 100 of the rest, times 1.2 in the middle step: 7.992 ms
    assert "| token_choice | 8 ms |" in said


def test_a_result_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    assert draw(monkeypatch, tmp_path) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_small_and_has_light_and_dark_colours(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "images" / name).read_text()
    assert len(text) < 20_000
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    for token in ("--paper", "--muted", "--stage-experts", "--heat-6"):
        assert len(re.findall(rf"{token}: #\w{{6}};", text)) == 2  # light and dark
