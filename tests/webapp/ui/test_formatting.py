import math
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.ui import formatting
from webapp.ui.formatting import NBSP


def plain(text: str) -> str:
    return text.replace(NBSP, " ")


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 µs"),
        (0.4213, "0.421 µs"),
        (3.14159, "3.14 µs"),
        (41.26, "41.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (3_140, "3.14 ms"),
        (999_499, "999 ms"),
        (999_500, "1.00 s"),
        (12_000_000, "12.0 s"),
        (1_234_500_000, "1,234 s"),
        (-3_140, "−3.14 ms"),
    ],
)
def test_a_duration_keeps_three_digits_and_moves_to_the_next_unit_before_a_fourth(us, text):
    assert plain(formatting.duration_us(us)) == text


def test_milliseconds_read_as_the_same_duration_in_microseconds():
    assert plain(formatting.duration_ms(0.0421)) == "42.1 µs"
    assert formatting.duration_ms(None) == "–"


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_a_duration_is_within_half_a_percent_of_its_value(us):
    digits, unit = plain(formatting.duration_us(us)).split()
    shown = float(digits.replace(",", "")) * {"µs": 1, "ms": 1e3, "s": 1e6}[unit]
    assert math.isclose(shown, us, rel_tol=0.00501)
    assert unit == "s" or len(re.sub(r"[^0-9]", "", digits).lstrip("0")) <= 3


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (61_064_245_248, "61.1 GB"), (141e9, "141 GB"), (2e15, "2.00 PB")],
)
def test_a_size_is_in_decimal_units_and_has_no_fraction_of_a_byte(count, text):
    assert plain(formatting.size(count)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1, "1"), (12_345, "12,345"), (12_345.6, "12,346"), (-1200, "−1,200"), (-0.2, "0")]
)
def test_a_count_is_whole_with_its_thousands_marked(value, text):
    assert formatting.count(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1.0666, "1.07"), (19.94, "19.9"), (1234.6, "1,235")])
def test_a_plain_number_keeps_three_digits(value, text):
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0%"), (0.0812, "8.1%"), (0.0994, "9.9%"), (0.0996, "10%"), (0.31, "31%"), (1, "100%")]
)
def test_a_share_has_a_decimal_only_below_ten_percent(share, text):
    assert formatting.percent(share) == text


@pytest.mark.parametrize(
    ("change", "text"), [(0.081, "+8.1%"), (-0.31, "−31%"), (0, "0.0%"), (-0.0001, "0.0%"), (12.5, "+1,250%")]
)
def test_a_signed_percentage_always_shows_its_sign_except_at_zero(change, text):
    assert formatting.signed_percent(change) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.82, "▼ 18%"), (1.22, "▲ 22%"), (0.955, "▼ 4.5%"), (1.0001, "~"), (1, "~")]
)
def test_a_change_points_down_where_the_contender_is_faster(ratio, text):
    assert plain(formatting.change(ratio)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (125, "2 min"), (3599, "1 h"), (12_000, "3 h 20 min"),
     (40_000, "11 h"), (400_000, "5 days")],
)  # fmt: skip
def test_a_span_is_as_exact_as_a_person_needs(seconds, text):
    assert plain(formatting.span(seconds)) == text


def test_ago_counts_from_now():
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert plain(formatting.ago(now - timedelta(seconds=2), now)) == "2 s ago"
    assert formatting.ago(now, now) == "just now"
    assert formatting.ago(now + timedelta(seconds=5), now) == "just now"  # clocks of two machines
    assert formatting.ago(None, now) == "–"


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
@pytest.mark.parametrize(
    "format_",
    [formatting.duration_us, formatting.size, formatting.count, formatting.number, formatting.percent,
     formatting.signed_percent, formatting.change, formatting.span],
)  # fmt: skip
def test_what_is_missing_is_a_dash(format_, missing):
    assert format_(missing) == "–"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [
        (0.82, 0.81, 0.84, "16–19"),
        (1.22, 1.2, 1.25, "20–25"),
        (1.012, 0.997, 1.027, "−0.3–2.7"),
        (0.988, 0.973, 1.003, "−0.3–2.7"),
        (1.155, 1.151, 1.157, "15.1–15.7"),
    ],
)
def test_an_interval_is_written_as_the_change_it_belongs_to(ratio: float, low: float, high: float, text: str) -> None:
    assert formatting.within(ratio, low, high) == text
