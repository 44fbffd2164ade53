"""The table of backends on a small model: what each row says, and what is refused."""

from math import inf

import pytest
import torch

from bench_worker import calibrate, capacity, environment, kernel_table, tuning
from bench_worker.errors import DoesNotFit
from bench_worker.interleave import Reading
from bench_worker.kernel_report import as_text, spec_of
from bench_worker.kernel_table import measure
from bench_worker.kernels import registry
from bench_worker.roofline import Limits

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_table, "ROUNDS", 3)
        patch.setattr(kernel_table, "INPUTS", 1)
        patch.setattr(tuning, "ROUNDS", 1)
        patch.setattr(calibrate, "BUFFER_BYTES", 4096)
        patch.setattr(calibrate, "PRODUCTS", ((4, 64, 16),))
        patch.setattr(calibrate.host, "last_level_cache_bytes", lambda: 1024)
        yield


@pytest.fixture(scope="module")
def table(quick, tiny_config):
    return measure(spec_of(str(tiny_config), [1, 40]), [1, 40], CPU)


def test_every_backend_has_a_row_at_every_number_of_tokens(table):
    names = ("auto", *registry.NAMES)
    assert sorted((row.backend, row.tokens) for row in table.rows) == sorted((n, t) for n in names for t in (1, 40))


def test_a_row_holds_what_programs_ask_for(table):
    fields = {"backend", "tokens", "experts_us", "layer_us", "floor_us", "rel_error", "padding_waste", "available"}
    for row in table.rows:
        document = row.model_dump()
        assert fields | {"reason"} <= set(document)
        if row.available:
            assert row.reason is None
            assert 0 < row.experts_us < row.layer_us
            assert row.rel_error < 1e-2
            assert row.samples == 3
            assert row.bound in ("memory", "compute", "overhead")
            assert row.share > 0
        else:
            assert row.reason
            assert row.experts_us is row.layer_us is row.floor_us is None


def test_a_share_is_the_floor_of_what_had_to_move_over_the_time(tiny_config, monkeypatch):
    """One token visits 2 experts of 3 · 64 · 32 weights; 2 rows of 2 · 64 + 3 · 32 numbers; 2 bytes each, at 1 GB/s."""

    class Fixed(kernel_table.Probe):
        def limits(self, call, reach=2):
            return Limits(bytes_per_s=1e9, flops_per_s=inf)

    def interleaved(layers, *_, between, lead_in_s):
        between()
        times = ({"route": 1.0, "experts": us} for us in (90.0, 100.0, 400.0))
        return [Reading(name, 0, own) for own in times for name in layers]

    monkeypatch.setattr(kernel_table, "Probe", Fixed)
    monkeypatch.setattr(kernel_table, "interleaved", interleaved)
    for row in measure(spec_of(str(tiny_config), [1]), [1], CPU).rows:
        if row.available:
            assert (row.experts_us, row.layer_us) == (100.0, 101.0)
            assert row.floor_us == pytest.approx(2 * 2 * (3 * 64 * 32 + 2 * 64 + 3 * 32) / 1e3)
            assert row.share == pytest.approx(row.floor_us / 100)
            assert row.bus == 1.0
            assert row.bound == "overhead"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_experts_are_held_against_what_they_have_to_move(wide_config, monkeypatch, quantization):
    """8 tokens go to 2 experts each; at a byte a nanosecond the weights of all active ones are the floor."""
    seen = []
    monkeypatch.setattr(kernel_table.Probe, "limits", lambda probe, call: Limits(bytes_per_s=1e9, flops_per_s=inf))
    work = kernel_table._experts_work
    monkeypatch.setattr(kernel_table, "_experts_work", lambda *args: seen.append(work(*args)) or seen[-1])
    table = measure(spec_of(str(wide_config), [8], quantization=quantization), [8], CPU)
    rows = {row.backend: row for row in table.rows}
    able = {name for name, row in rows.items() if row.available}
    assert {"auto", "loop"} <= able <= {"auto", "loop", "zentorch"}
    assert rows["loop"].fusion == "gate_up"
    assert f"'{quantization}' is not something 'deepspeed' can compute" in rows["deepspeed"].reason
    stored = capacity.stored_bytes(256, 128, 2, quantization)
    assert seen[0].weight_bytes % stored == 0
    assert seen[0].weight_bytes / stored <= 8
    assert (seen[0].int8_flops > 0) is (quantization == "int8")
    assert table.quantization == quantization
    assert as_text(table).startswith(f"{wide_config}, one MoE layer, bfloat16, experts in {quantization}, uniform load")
    assert (" int8 " in as_text(table).splitlines()[1]) is (quantization == "int8")


def test_ratios_are_to_the_fastest(table):
    for tokens in (1, 40):
        rows = [row for row in table.rows if row.tokens == tokens and row.available]
        assert min(row.ratio for row in rows) == 1.0


def test_only_backends_that_pad_waste(table):
    by_name = {row.backend: row for row in table.rows if row.tokens == 40}
    for name in ("deepspeed", "loop"):
        assert by_name[name].padding_waste == 0
    for name in ("padded", "deepspeed_layer"):
        assert 0 < by_name[name].padding_waste < 1
    alone = next(row for row in table.rows if (row.backend, row.tokens) == ("padded", 1))
    assert alone.padding_waste == 0.75  # one token on 2 of 8 experts, one row each


def test_auto_says_what_it_ran(table):
    for row in table.rows:
        assert (row.chosen in registry.EXPERT_BACKENDS) if row.backend == "auto" else row.chosen is None


def test_the_table_tells_its_machine_and_what_else_ran_there(table):
    assert {"name", "fingerprint", "flags"} <= set(table.environment)
    assert table.ceilings is None
    assert set(table.meanwhile.matrix) == {"bfloat16"}


def test_it_says_how_many_sizes_are_done(tiny_config):
    heard = []
    measure(spec_of(str(tiny_config), [1, 2, 3]), [1, 2, 3], CPU, heard.append)
    assert heard == [0, 1, 2]


def test_people_get_the_same_rows(table):
    lines = as_text(table).splitlines()
    assert "one MoE layer, bfloat16, uniform load" in lines[0]
    assert lines[1].startswith("ceilings meanwhile: read ")
    assert len([line for line in lines if line.split()[:1] in (["1"], ["40"])]) == len(table.rows)


def test_a_backend_that_is_away_says_why(tiny_config, monkeypatch):
    monkeypatch.setattr("bench_worker.kernels.zentorch.missing", lambda device: "it is away")
    monkeypatch.setattr("bench_worker.machine_state.threads_flag", lambda environ, cores: "Threads are few.")
    table = measure(spec_of(str(tiny_config), [2]), [2], CPU)
    assert "Threads are few." in table.environment["flags"]
    (row,) = [row for row in table.rows if row.backend == "zentorch"]
    assert (row.available, row.reason) == (False, "kernels.experts: 'zentorch' can't run: it is away")
    assert f"{row.tokens:>7}  {'zentorch':26}{row.reason}" in as_text(table).splitlines()


def test_tokens_beyond_memory_are_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr(environment, "available_bytes", lambda device: 2 * 10**9)
    with pytest.raises(
        DoesNotFit, match=r"measuring olmoe-1b-7b at 131,072 tokens needs .* GB and the device has 2\.0 GB"
    ):
        measure(spec_of("olmoe-1b-7b", [131_072]), [131_072], CPU)


def test_a_backend_that_needs_more_than_is_left_beside_the_weights_is_left_out(tiny_config, monkeypatch):
    spec = spec_of(str(tiny_config), [2000], load="zipf")
    need = capacity.fit_measurement(spec, None, tokens_per_sequence=2000).total_bytes
    monkeypatch.setattr(environment, "available_bytes", lambda device: need)
    monkeypatch.setattr(capacity, "PROCESS_BYTES", 0)
    monkeypatch.setattr(capacity, "packed_bytes", lambda spec: need if spec.kernels.experts == "zentorch" else 0)
    (row,) = [row for row in measure(spec, [2], CPU).rows if row.backend == "zentorch"]
    assert not row.available
    assert row.reason.startswith(("beside the weights it needs", "kernels.experts: 'zentorch' can't run"))
