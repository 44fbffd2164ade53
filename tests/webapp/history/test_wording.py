"""A digest says what became slower in words and in figures."""

from __future__ import annotations

from datetime import UTC, datetime

from webapp.history import wording

FIRST = datetime(2026, 3, 12, 2, tzinfo=UTC)
STEP = wording.Slower("step_us", "base", "1×16", 1.1, 3e-6, FIRST, "https://m.example/history/1/", wording.A_NIGHT)
EXPERTS = wording.Slower(
    "stage.experts", "base", "1×16", 1.081, 7e-15, FIRST, "https://m.example/history/2/", wording.A_NIGHT
)
VERSIONS = {"image": ("1", "2")}


def test_the_subject_names_the_stage_and_the_size() -> None:
    assert wording.subject("Fusion on a CPU", [STEP, EXPERTS]) == "Slower: experts +8.1%, Fusion on a CPU"


def test_the_text_has_direction_size_certainty_night_versions_and_links() -> None:
    assert wording.text("Fusion on a CPU", [STEP, EXPERTS], VERSIONS) == (
        "Fusion on a CPU is slower since the night of 2026-03-12, confirmed by a further night.\n"
        "\n"
        "- experts +8.1% (p = 7e-15), base at 1×16\n"
        "  https://m.example/history/2/\n"
        "- step time +10% (p = 3e-06), base at 1×16\n"
        "  https://m.example/history/1/\n"
        "\n"
        "New that night: image 1 → 2."
    )


def test_what_a_rerun_confirmed_is_told_with_its_time_and_with_what_it_could_not_go_back_to() -> None:
    by = EXPERTS._replace(confirmed_by=wording.a_rerun(datetime(2026, 3, 13, 3, 12, tzinfo=UTC)))
    again = wording.environment(VERSIONS)
    text = wording.text("Fusion", [by, STEP], VERSIONS, again)
    assert text.startswith(
        "Fusion is slower since the night of 2026-03-12, confirmed by a re-run at 03:12 UTC and a further night.\n"
    )
    assert text.endswith(
        "New that night: image 1 → 2.\n"
        "The re-run measured what is installed now. Workers can't go back to the last good night (image 1 → 2), so it "
        "tells that the new level is there, not what caused it."
    )
    assert wording.environment({}) == "Labels, commit and versions of the re-run are those of the last good night."


def test_a_long_digest_is_cut_and_says_so() -> None:
    text = wording.text("Fusion", [EXPERTS] * 25, {})
    assert text.count("experts") == 10
    assert "- and 15 more" in text
    assert text.endswith("No version was new that night.")


def test_programs_get_the_same() -> None:
    facts = wording.facts("Fusion", [STEP, EXPERTS], VERSIONS)
    assert (facts["event"], facts["first_bad_night"]) == ("slower", "2026-03-12")
    assert facts["changes"][0] == {
        "metric": "stage.experts", "name": "experts", "variant": "base", "condition": "1×16", "ratio": 1.081,
        "p_value": 7e-15, "first": "2026-03-12T02:00:00+00:00", "address": "https://m.example/history/2/",
        "confirmed_by": "a further night",
    }  # fmt: skip
    assert facts["versions"] == {"image": {"before": "1", "after": "2"}}
