"""The capacity page for a pasted config.json: what it answers, and what it refuses in a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.webapp.experiments import rows
from webapp.experiments.sizing import MAX_CONFIG_CHARACTERS, OwnModelForm, SizingForm

pytestmark = pytest.mark.django_db
OWN = "/capacity/?as=config"
CONFIGS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "configs"
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "tie_word_embeddings": False, "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip


def posted(client: Any, config: Any = MIXTRAL, **values: str) -> Any:
    text = config if isinstance(config, str) else json.dumps(config)
    response = client.post(OWN, {"config": text, **values})
    assert response.status_code == 200
    return response


def test_a_pasted_config_is_answered_like_the_preset(signed_in: Any) -> None:
    own = posted(signed_in).context["answer"]
    preset = SizingForm({"model": "mixtral-8x7b"}).answer()
    assert preset
    assert own.deployment == preset.deployment
    assert (own.least, own.longest_context) == (preset.least, preset.longest_context)
    assert own.measurement.fit == preset.measurement.fit


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_every_known_config_is_answered(signed_in: Any, file: Path) -> None:
    response = posted(signed_in, file.read_text(), device="B200", tp="2", dp="8")
    assert response.context["answer"].deployment.weights_bytes > 0
    assert "moescope-config" not in response.content.decode()  # where it lay is nobody's business


def test_before_anything_is_pasted_nothing_is_wrong(signed_in: Any) -> None:
    response = signed_in.get(OWN)
    assert "The memory of the model that it describes is shown here." in rows.text_of(response)
    assert not {"errorlist", "aria-invalid"} & set(re.findall(r"[\w-]+", response.content.decode()))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("", "Paste a config.json, or choose the file."),
        ("{", "It is not valid JSON (line 1, column 2"),
        ("[1]", "It holds no JSON object"),
        ("[" * 100_000, "It is not valid JSON"),
        ("{}", "the config has no model_type"),
        ({"model_type": "llama"}, "'llama'"),
        ({name: value for name, value in MIXTRAL.items() if name != "num_local_experts"}, "num_local_experts"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "top_k 9 is above the 8 experts"),
        (" " * 10 + "x" * MAX_CONFIG_CHARACTERS + "x", "It has 200,001 characters; at most 200,000 are read."),
    ],
    ids=["empty", "cut off", "a list", "nested", "no fields", "no MoE", "no experts", "too many", "too long"],
)
def test_what_is_no_config_is_said_beside_it(signed_in: Any, config: Any, sentence: str) -> None:
    response = posted(signed_in, config)
    (said,) = response.context["form"].errors["config"]
    assert sentence in said
    assert response.context["answer"] is None


def test_sentences_name_the_pasted_model_and_no_path(signed_in: Any) -> None:
    assert posted(signed_in, tp="3").context["form"].errors["tp"] == [
        "3 does not divide the 32 attention heads of the pasted config"
    ]
    said = rows.text_of(posted(signed_in, prompt_tokens="50000"))
    assert "the pasted config was made for 32,768" in said


def test_it_is_measured_on_the_command_line_alone(signed_in: Any) -> None:
    response = posted(signed_in)
    assert "The command line measures such a model" in rows.text_of(response)
    assert "Measure it" not in rows.text_of(response)
    assert "can't measure it as it stands" not in rows.text_of(response)


def test_nothing_of_it_is_kept(signed_in: Any, tmp_path: Path) -> None:
    form = OwnModelForm({"config": json.dumps(MIXTRAL)}, tmp_path)
    assert form.answer()
    assert [file.name for file in tmp_path.iterdir()] == ["the pasted config.json"]  # the view's folder goes with it
    assert str(tmp_path) not in str(posted(signed_in).content)


def test_a_part_of_the_page_carries_the_answer(signed_in: Any) -> None:
    response = signed_in.post(OWN, {"config": json.dumps(MIXTRAL)}, headers={"HX-Request": "true"})
    part = response.content.decode()
    assert "<textarea" not in part
    assert '<div id="id_config_said" hx-swap-oob="true"></div>' in part
    assert re.search(r"It does not fit: 9\d\.\d\sGB against 80\.0\sGB", rows.text_of(response))


def test_an_address_can_not_hold_it(signed_in: Any) -> None:
    response = signed_in.get("/capacity/", {"config": json.dumps(MIXTRAL)})
    assert response.context["answer"].deployment == SizingForm({}).answer().deployment  # type: ignore[union-attr]
