from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from bench_worker.workload.generators import GENERATORS, generate
from bench_worker.workload.requests import read_trace

REQUESTS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "requests"
NAMES = list(GENERATORS)


def columns(requests):
    arrival_s, prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    return {"prompt_tokens": prompt, "output_tokens": output, "gap_s": np.diff(arrival_s)}


def test_the_built_in_traces_are_conversation_and_code():
    assert NAMES == ["conversation", "code"]
    assert all("AzurePublicDataset" in g.source and "CC-BY-4.0" in g.source for g in GENERATORS.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_table_holds_rising_quantile_functions(name):
    generator = GENERATORS[name]
    assert generator.probability[0] == 0
    assert generator.probability[-1] == 1
    assert (np.diff(generator.probability) > 0).all()
    for values in (generator.prompt_tokens, generator.output_tokens, generator.gap_s):
        assert values.shape == generator.probability.shape
        assert (np.diff(values) >= 0).all()
    assert generator.prompt_tokens[0] >= 1
    assert generator.output_tokens[0] >= 1


@pytest.mark.parametrize("name", NAMES)
def test_generated_requests_follow_the_quantiles_of_the_table(name):
    """The share of draws at or below the quantile at p is p, within what 20,000 draws allow (four sigmas)."""
    generator = GENERATORS[name]
    for key, drawn in columns(generate(name, 20_000, seed=1)).items():
        quantiles = getattr(generator, key)
        sigma = np.sqrt(generator.probability * (1 - generator.probability) / len(drawn))
        below = np.mean(drawn[:, None] < quantiles - 0.5 * (key != "gap_s"), axis=0)
        at_or_below = np.mean(drawn[:, None] <= quantiles + 0.5 * (key != "gap_s"), axis=0)
        assert (below <= generator.probability + 4 * sigma).all(), key
        assert (at_or_below >= generator.probability - 4 * sigma - 1e-12).all(), key


@pytest.mark.parametrize("name", NAMES)
def test_prompt_and_output_keep_their_rank_correlation(name):
    drawn = columns(generate(name, 20_000, seed=2))
    rho = spearmanr(drawn["prompt_tokens"], drawn["output_tokens"]).statistic
    assert rho == pytest.approx(GENERATORS[name].correlation, abs=4 / np.sqrt(20_000))


def test_the_first_request_arrives_at_0_and_the_others_in_order():
    requests = generate("code", 500, seed=3)
    assert requests[0].arrival_s == 0
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))


def test_values_are_plain_python_numbers():
    request = generate("conversation", 1, seed=0)[0]
    assert [type(value) for value in request] == [float, int, int]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_trace_and_a_smaller_count_its_head(name):
    requests = generate(name, 100, seed=7)
    assert generate(name, 100, seed=7) == requests
    assert generate(name, 30, seed=7) == requests[:30]
    assert generate(name, 100, seed=8) != requests
    assert generate(name, 0, seed=7) == []


@pytest.mark.parametrize(("name", "part"), [("conversation", "conv"), ("code", "code")])
def test_generated_requests_look_like_the_original_trace(name, part):
    path = REQUESTS / f"azure_llm_2023_{part}.csv"
    if not path.exists():
        pytest.skip(f"needs the Azure trace shared/data/requests/{path.name}")
    original, drawn = columns(read_trace(path)), columns(generate(name, 100_000, seed=4))
    for key in original:
        values = np.unique(original[key])
        cdfs = [np.searchsorted(np.sort(c[key]), values, side="right") / len(c[key]) for c in (original, drawn)]
        assert np.abs(cdfs[0] - cdfs[1]).max() < 0.025, key
        assert drawn[key].mean() == pytest.approx(original[key].mean(), rel=0.04), key
        for p in (50, 90, 99):
            assert np.percentile(drawn[key], p) == pytest.approx(np.percentile(original[key], p), rel=0.06), (key, p)
