from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench_worker.parallel.network_fit import fit_plain, fit_table, held_out_errors, to_toml
from bench_worker.parallel.topology import Topology, Wire, parse

SIZES = 2.0 ** np.arange(10, 29)
#: A latency, then a rate, with a protocol that costs a third more in the middle: no straight line.
CURVE = (10 + SIZES / 3e5) * np.where((SIZES > 2**15) & (SIZES < 2**21), 1.33, 1)


def test_a_table_tells_the_rows_that_it_was_made_from():
    assert fit_table(SIZES, CURVE, ranks=8).time_us(SIZES) == pytest.approx(CURVE, rel=0.03)


def test_a_stray_row_does_not_bend_a_table():
    sizes, times = np.repeat(SIZES, 3), np.repeat(CURVE, 3)
    times[30] *= 3
    assert fit_table(sizes, times, ranks=8).time_us(SIZES) == pytest.approx(CURVE, rel=0.05)


def test_more_bytes_never_take_less_time():
    times = 10 + SIZES / 3e5
    times[0] = 14
    assert (np.diff(fit_table(SIZES, times, ranks=2).us) >= 0).all()


def test_a_plain_fit_finds_start_up_time_and_rate():
    assert fit_plain(SIZES, 10 + SIZES / 3e5) == pytest.approx((10, 1 / 3e5))


def test_errors_are_those_of_rows_that_the_fit_has_not_seen():
    table, plain = held_out_errors(SIZES, 10 + SIZES / 3e5)
    assert plain == pytest.approx(0, abs=1e-6)
    assert np.median(table) < 0.05  # a chord of the curve
    table, plain = held_out_errors(SIZES, CURVE)
    assert np.median(table) < np.median(plain)


def test_what_is_written_reads_as_it_was():
    table = fit_table(SIZES, CURVE, ranks=8, direction="dispatch")
    both = (table, fit_table(SIZES, CURVE, ranks=8, direction="combine"))
    paths = {
        "wire": Wire(origin="modelled", source='"ours", measured', tables=both),
        "lan": Wire(origin="assumed", source="a guess", alpha_us=0.5, gb_per_s=12.5, shared_by_node=True),
    }
    made = Topology(name="ours", description="Ours", paths={"intra_node": paths["wire"], "inter_node": paths["lan"]})
    assert parse(to_toml(paths, [made]).encode(), "file") == (paths, {"ours": made})


@given(name=st.text(min_size=1), path=st.text(min_size=1), words=st.text(min_size=1, max_size=400))
@example(name='a "quoted" \\ name. of\nours\x7f', path="[a.b]", words='\'"""\\\U0001f600')
def test_any_name_and_any_words_are_read_as_they_were_written(name, path, words):
    wire = Wire(origin="assumed", source=words, alpha_us=0.5, gb_per_s=12.5)
    made = Topology(name=name, description=words, paths={"intra_node": wire})
    document = tomllib.loads(to_toml({path: wire}, [made]))
    assert document["topologies"] == {name: {"description": words, "intra_node": path}}
    assert document["paths"] == {path: {"origin": "assumed", "source": words, "alpha_us": 0.5, "gb_per_s": 12.5}}
