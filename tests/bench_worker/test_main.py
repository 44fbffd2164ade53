"""The command line: exit codes, sentences, the protocol on standard error, and how a run is stopped."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench_worker import __main__ as command_line
from bench_worker import capacity, environment, runner
from bench_worker.commands import common, run
from bench_worker.errors import Unavailable
from bench_worker.result import Result
from bench_worker.workload.recordings import from_counts, read_recording, write_recording
from tests.bench_worker.make import made_result

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "bench_worker")


def program(*arguments, **kwargs):
    """The program as everyone starts it, to its end."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120, **kwargs
    )
    assert "Traceback" not in done.stderr
    return done


def events(stderr):
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


@pytest.fixture
def experiment_file(tiny_config, tmp_path):
    def write(name="experiment.json", vary=None, conditions=(), **base):
        workload = {"requests": 3, "prompt_tokens": 6, "output_tokens": 3, "concurrency": 2, **base.pop("workload", {})}
        document = {
            "base": {"model": str(tiny_config), "workload": workload, **base},
            "vary": vary,
            "conditions": list(conditions),
            "measure": {"warmup_steps": 1},
        }
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.fixture
def run_main(capsys):
    """The program inside this process: exit code, standard output, and the sentences of its error."""

    def run(*arguments):
        code = command_line.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        messages = [event["message"] for event in events(err) if event["event"] == "error"]
        return code, out, messages

    return run


# --- run


def test_a_run_writes_its_result_and_tells_its_progress(experiment_file, tmp_path):
    vary = {"field": "kernels.fusion", "values": ["none", "gate_up"]}
    out = tmp_path / "result.json"
    done = program("run", experiment_file(vary=vary), "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    result = Result.model_validate_json(out.read_bytes())
    assert [(run.variant, run.condition, run.status) for run in result.runs] == [
        ("none", "2×6", "ok"), ("gate_up", "2×6", "ok")
    ]  # fmt: skip
    assert list(tmp_path.glob("*.part")) == []

    said = events(done.stderr)
    progress = [event for event in said if event["event"] == "progress"]
    assert list(dict.fromkeys(event["phase"] for event in progress)) == [
        "prepare", "check", "warmup", "measure", "write"
    ]  # fmt: skip
    assert all(set(event) == {"event", "phase", "done", "total", "variant", "condition"} for event in progress)
    measured = [event for event in progress if event["phase"] == "measure"]
    steps = len(result.runs[0].steps.index)
    assert (measured[-1]["done"], measured[-1]["total"]) == (2 * steps, 2 * steps)
    finished = [event["run"] for event in said if event["event"] == "run"]
    assert [(run["variant"], run["status"]) for run in finished] == [("none", "ok"), ("gate_up", "ok")]
    assert finished[0]["summary"] == result.runs[0].summary.model_dump(mode="json")


def test_without_a_place_for_it_the_result_is_all_that_standard_output_holds(experiment_file, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,2\n1,4,3\n")
    workload = {"trace": "mine", "requests": 2, "prompt_tokens": None, "output_tokens": None}
    done = program("run", experiment_file(workload=workload), "--traces", tmp_path)
    assert done.returncode == 0
    (run,) = Result.model_validate_json(done.stdout).runs
    assert (run.condition, run.status) == ("2×mine", "ok")
    assert (run.requests.prompt_tokens, run.requests.output_tokens) == ([5, 4], [2, 3])


def test_what_needs_more_memory_than_there_is_exits_with_3_and_both_figures(tmp_path):
    file, out = tmp_path / "big.json", tmp_path / "result.json"
    # 46.7 billion parameters of 4 bytes; 2,048 requests of 8,192 tokens × 32 layers × 2 × 1,024 values of 4 bytes
    workload = {"concurrency": 2048, "requests": 2048, "prompt_tokens": 8191, "output_tokens": 1}
    base = {"model": "mixtral-8x7b", "layers": 32, "kernels": {"dtype": "float32"}, "workload": workload}
    file.write_text(json.dumps({"base": base}))
    done = program("run", file, "--out", out)
    assert done.returncode == 3
    (error,) = events(done.stderr)
    said = re.fullmatch(
        r"measuring mixtral-8x7b needs ([\d,.]+) GB and the device has ([\d,.]+) GB free", error["message"]
    )
    need, free = (float(figure.replace(",", "")) for figure in said.groups())
    assert need > 187 + 4398 > free
    assert not out.exists()


def start(*arguments):
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_phase(process, phase, within_s=60):
    """Read standard error until the program reports ``phase``."""
    until, seen = time.monotonic() + within_s, b""
    while f'"phase": "{phase}"'.encode() not in seen:
        ready, _, _ = select.select([process.stderr], [], [], max(0, until - time.monotonic()))
        chunk = os.read(process.stderr.fileno(), 65_536) if ready else b""
        if not chunk:
            process.kill()
            pytest.fail(f"no {phase} in {seen.decode()}")
        seen += chunk


@pytest.mark.parametrize("how", ["TERM", "INT", "end of standard input"])
def test_a_run_that_is_stopped_exits_with_130_and_leaves_no_result(experiment_file, tmp_path, how):
    out = tmp_path / "result.json"
    long = experiment_file(workload={"requests": 100, "output_tokens": 1000})
    options = ["--stop-on-eof"] if how.startswith("end") else []
    with start("run", long, "--out", out, *options) as process:
        wait_for_phase(process, "measure")
        if how.startswith("end"):
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[f"SIG{how}"])
        rest = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert events(rest)[-1] == {"event": "error", "message": "canceled"}
    assert "Traceback" not in rest
    assert list(tmp_path.glob("result.json*")) == []


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: None, "can't be read: No such file or directory"),
        (lambda p: p.mkdir(), "can't be read: Is a directory"),
        (lambda p: p.write_bytes(b""), "the document is not valid JSON (line 1, column 1: Expecting value)"),
        (lambda p: p.write_bytes(b"\xff\x00\xfe"), "the document is not UTF-8 text (byte 0)"),
        (lambda p: p.write_bytes(b" " * 10_000_000), "the document has more than 1,000,000 bytes, the most that are"),
        (lambda p: p.write_bytes(b"[" * 900_000), "the document nests too deep"),
        (lambda p: p.write_bytes(b'{"base": NaN}'), "the document is not valid JSON (NaN is no JSON value)"),
    ],
    ids=["missing", "folder", "empty", "binary", "10 MB", "nested", "NaN"],
)
@pytest.mark.parametrize("command", ["run", "fit"])
def test_a_file_that_is_no_document_exits_with_2(run_main, tmp_path, command, write, message):
    path = tmp_path / "experiment.json"
    write(path)
    code, out, messages = run_main(command, path)
    assert (code, out) == (2, "")
    assert len(messages) == 1
    assert messages[0].startswith("experiment: ")
    assert message in messages[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_without_permission_exits_with_2(run_main, experiment_file):
    path = experiment_file()
    path.chmod(0)
    assert run_main("run", path)[::2] == (2, [f"experiment: {path} can't be read: Permission denied"])


def test_every_problem_of_an_experiment_is_a_line(run_main, experiment_file):
    code, _, (message,) = run_main("run", experiment_file(layers=0, workload={"concurrency": -1}))
    assert code == 2
    assert message.splitlines() == [
        "base.layers: 0 is not allowed; it must be at least 1",
        "base.workload.concurrency: -1 is not allowed; it must be at least 1",
    ]


def test_a_person_reads_words_and_no_protocol(experiment_file, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert command_line.main(["run", str(experiment_file(layers=5))]) == 2
    assert capsys.readouterr().err == "base.layers: 5 is above the 4 MoE layers of tiny\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "'mine.csv' is not one of conversation, code, and there is no such file"),
        (b"", "mine.csv: is empty"),
        (b"\x00\x01\x02", "mine.csv, line 1: is not UTF-8 text; a trace is a CSV or JSON lines file"),
        (b"arrival_s,prompt_tokens,output_tokens\n0,5,2\n1,-3,2\n2,1,1\n",
         "mine.csv, line 3: prompt_tokens is '-3'; it must be a whole number from 1 to 10,000,000"),
        (b"arrival_s,prompt_tokens,output_tokens\n0,5,2\n", "mine.csv: holds 1 requests, and 3 are asked for"),
    ],
    ids=["missing", "empty", "binary", "bad row", "too short"],
)  # fmt: skip
def test_a_trace_that_can_not_be_used_exits_with_2(run_main, experiment_file, tmp_path, monkeypatch, content, sentence):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("mine.csv").write_bytes(content)
    code, _, messages = run_main("fit", experiment_file(workload={"trace": "mine.csv"}))
    assert (code, messages) == (2, [f"base.workload.trace: {sentence}"])


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nowhere/result.json", "--out: {root}/nowhere is not a folder"),
        ("file/result.json", "--out: {root}/file is not a folder"),
        ("folder", "--out: {root}/folder is a folder; name a file in it"),
    ],
)
def test_a_place_where_no_result_can_be_written_is_refused_before_measuring(
    run_main, experiment_file, tmp_path, monkeypatch, place, sentence
):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(runner, "run_experiment", None)  # would fail if it were called
    code, _, messages = run_main("run", experiment_file(), "--out", tmp_path / place)
    assert (code, messages) == (2, [sentence.format(root=tmp_path)])


@pytest.mark.parametrize("command", ["run", "fit"])
def test_a_folder_of_traces_that_is_none_is_refused(run_main, experiment_file, tmp_path, command):
    code, _, messages = run_main(command, experiment_file(), "--traces", tmp_path / "nowhere")
    assert (code, messages) == (2, [f"--traces: {tmp_path}/nowhere is not a folder"])


@pytest.fixture
def instead_of_measuring(monkeypatch):
    """Put a function in the place of the measurement, and leave this process's signals and memory alone."""

    def put(function):
        monkeypatch.setattr(runner, "run_experiment", lambda *args, **kwargs: function())
        monkeypatch.setattr(run.signal, "signal", lambda *args: None)
        monkeypatch.setattr(run, "settle_allocators", lambda: None)

    return put


def raising(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Unavailable("kernels.experts: 'x' needs a GPU"), 4, "kernels.experts: 'x' needs a GPU"),
        (torch.OutOfMemoryError("CUDA is full.\nMore."), 3, "measuring ran out of device memory: CUDA is full."),
        (runner.Canceled(), 130, "canceled"),
        (KeyboardInterrupt(), 130, "canceled"),
    ],
    ids=["unavailable", "out of memory", "canceled", "Ctrl-C"],
)  # fmt: skip
def test_what_ends_a_measurement_has_its_exit_code(
    run_main, experiment_file, instead_of_measuring, error, code, message
):
    instead_of_measuring(raising(error))
    assert run_main("run", experiment_file()) == (code, "", [message])


def test_a_result_that_can_not_be_written_is_said_in_one_sentence(
    run_main, experiment_file, instead_of_measuring, tmp_path
):
    folder = tmp_path / "results"
    folder.mkdir()

    def measure():
        folder.rmdir()
        return made_result()

    instead_of_measuring(measure)
    code, _, messages = run_main("run", experiment_file(), "--out", folder / "result.json")
    assert (code, messages) == (1, [f"{folder}/result.json can't be written: No such file or directory"])


def test_a_result_takes_the_place_of_an_older_one(run_main, experiment_file, instead_of_measuring, tmp_path):
    out = tmp_path / "result.json"
    out.write_text("old")
    instead_of_measuring(made_result)
    assert run_main("run", experiment_file(), "--out", out)[0] == 0
    assert Result.model_validate_json(out.read_bytes()) == made_result()


def test_progress_is_told_a_few_times_a_second_and_at_the_end_of_a_phase(capsys, monkeypatch):
    now = iter([100.0, 100.1, 100.35, 100.4, 100.45, 100.5])
    monkeypatch.setattr(common.time, "monotonic", lambda: next(now))
    report = common.StderrReport()
    for phase, done in [("warmup", 1), ("warmup", 2), ("warmup", 3), ("measure", 1), ("measure", 2), ("measure", 9)]:
        report.progress(phase, done, 9)
    told = [(event["phase"], event["done"]) for event in events(capsys.readouterr().err)]
    assert told == [("warmup", 1), ("warmup", 3), ("measure", 1), ("measure", 9)]


# --- fit


def test_fit_gives_the_largest_figures_first_and_then_every_run(run_main, experiment_file):
    vary = {"field": "kernels.dtype", "values": ["bfloat16", "float32"]}
    conditions = [{"concurrency": 1, "prompt_tokens": 9}, {"concurrency": 2, "prompt_tokens": 7}]
    code, out, _ = run_main("fit", experiment_file(vary=vary, conditions=conditions), "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {"deployment", "measurement", "device", "available_bytes", "refused", "warnings", "runs"}
    assert [(run["variant"], run["condition"]) for run in found["runs"]] == [
        ("bfloat16", "1×9"), ("float32", "1×9"), ("bfloat16", "2×7"), ("float32", "2×7")
    ]  # fmt: skip
    assert found["deployment"] == found["runs"][3]["deployment"]
    assert found["measurement"] == found["runs"][2]["measurement"]  # kept kernels outweigh float32's larger weights
    assert found["refused"] is None
    # two sequences of 7 + 3 tokens; 4 layers of keys and values for 2 heads of 16 in float32
    assert (found["deployment"]["sequences"], found["deployment"]["tokens_per_sequence"]) == (2, 10)
    assert found["deployment"]["kv_bytes"] == 2 * 10 * 4 * (2 * 2 * 16) * 4
    assert found["measurement"]["kv_bytes"] == 2 * 10 * 1 * (2 * 2 * 16) * 2  # one layer is executed
    assert found["measurement"]["fits"] is True


def test_fit_says_what_run_would_refuse(run_main, experiment_file, monkeypatch):
    monkeypatch.setattr(environment, "available_bytes", lambda device: 400_000_000)
    code, out, _ = run_main("fit", experiment_file())
    assert code == 0
    refused = out.splitlines()[-1]
    assert refused.startswith("It can't be measured here: measuring ")
    assert refused.endswith("tiny.json needs 0.6 GB and the device has 0.4 GB free.")
    found = json.loads(run_main("fit", experiment_file(), "--json")[1])
    assert f"It can't be measured here: {found['refused']}." == refused
    assert found["measurement"]["fits"] is False


def test_fit_counts_no_kernels_and_no_probes_of_the_cpu_on_a_gpu(run_main, experiment_file, monkeypatch):
    here = json.loads(run_main("fit", experiment_file(), "--json")[1])["measurement"]
    monkeypatch.setattr(environment, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(environment, "available_bytes", lambda device: 80 * 10**9)
    there = json.loads(run_main("fit", experiment_file(), "--json")[1])["measurement"]
    assert there["parts"] == here["parts"] | {"kernels": 0, "process": capacity.PROCESS_BYTES}
    assert here["parts"]["kernels"] > 0


def test_fit_in_words_gives_weights_and_cache_of_every_run(run_main, tmp_path):
    file = tmp_path / "experiment.json"
    workload = {"prompt_tokens": 2000, "output_tokens": 48, "concurrency": 4}
    file.write_text(json.dumps({"base": {"model": "olmoe-1b-7b", "workload": workload}}))
    _, out, _ = run_main("fit", file)
    # 6.919 billion parameters of 2 bytes; 4 × 2,048 tokens × 16 layers × 2 × 2,048 values of 2 bytes
    assert out.startswith("base at 4×2000: deployed ")
    assert "(weights 13.8 GB, KV cache 1.1 GB); measured here " in out


def test_fit_on_a_named_device_says_how_many_are_needed(run_main, tmp_path):
    file = tmp_path / "experiment.json"
    workload = {"prompt_tokens": 2000, "output_tokens": 48, "concurrency": 4}
    file.write_text(json.dumps({"base": {"model": "qwen3-30b-a3b", "workload": workload}}))
    _, out, _ = run_main("fit", file, "--device", "h100")
    lines = out.splitlines()
    assert lines[1] == (
        "  bfloat16: attention 1.8 GB, experts 58.0 GB, router 25.2 MB, norms 0.4 MB, embedding 0.6 GB, lm head 0.6 GB"
    )
    # 80 GB less 61,064,245,248 of weights and 209,715,200 of buffers hold 93 sequences of 2,048 · 98,304 bytes
    assert lines[2] == (
        "  H100 (80.0 GB): fits; at most 93 requests of 2,048 tokens at once, or 40,960 tokens each at this concurrency"
    )
    _, out, _ = run_main("fit", file, "--device", "L40S")
    assert out.splitlines()[2].startswith("  L40S (48.0 GB): does not fit; needs at least 2 of these (TP 2 × DP 1, 31.")
    found = json.loads(run_main("fit", file, "--device", "L40S", "--json")[1])
    assert found["device"]["memory_bytes"] == 48 * 10**9
    assert found["runs"][0]["least"]["devices"] == 2
    assert found["runs"][0]["least"]["layout"] == {"tp": 2, "dp": 1, "nodes": 1}
    assert (found["runs"][0]["longest_context"], found["deployment"]["fits"]) == (0, False)


def test_fit_refuses_a_device_that_it_does_not_know(run_main, experiment_file):
    code, _, messages = run_main("fit", experiment_file(), "--device", "V900")
    assert (code, messages) == (
        2, ["--device: 'V900' is not one of H100, H200, B200, MI300X, A100, L40S"]
    )  # fmt: skip


def test_fit_answers_for_deployments_that_this_version_does_not_measure(run_main, experiment_file):
    parallel = {"layout": {"tp": 2, "dp": 2}, "redundant_experts": 4}
    code, out, _ = run_main("fit", experiment_file(parallel=parallel, kernels={"quantization": "fp8"}), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["deployment"]["formats"]["experts"] == "fp8"
    assert found["deployment"]["parts"]["experts"] == 4 * (8 + 4) // 4 * (3 * 64 * 32 + 3 * 4)
    assert found["refused"].startswith("base.kernels.quantization: 'fp8' is not built yet")


def test_fit_reads_a_config_file_as_it_is(run_main, tiny_config, tmp_path):
    code, out, _ = run_main("fit", tiny_config, "--json")
    assert code == 0
    assert json.loads(out)["runs"][0]["condition"] == "8×conversation"
    plain = tmp_path / "config"
    plain.write_text(tiny_config.read_text())
    again = json.loads(run_main("fit", plain, "--json")[1])
    assert again["deployment"]["parts"] == json.loads(out)["deployment"]["parts"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "llama", "hidden_size": 64}, "the config's model_type 'llama' is not one of qwen3_moe, "),
        ({"architectures": ["LlamaForCausalLM"], "hidden_size": 64}, "the config has no model_type; a mixture-of-"),
        ({"model_type": "olmoe", "hidden_size": 64}, "the config lacks num_hidden_layers, "),
    ],
)
def test_fit_says_what_a_config_file_lacks(run_main, tmp_path, config, sentence):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, _, [message] = run_main("fit", path)
    assert code == 2
    assert message.startswith(f"base.model: '{path}': {sentence}")
    assert "\n" not in message


def test_fit_warns_of_lengths_beyond_the_models_context(run_main, experiment_file):
    file = experiment_file(workload={"prompt_tokens": 5000})
    _, out, _ = run_main("fit", file)
    assert "Warning: The longest request has 5,003 tokens; tiny was made for 4,096." in out.splitlines()
    assert len(json.loads(run_main("fit", file, "--json")[1])["warnings"]) == 1


# --- the others


def test_models_are_listed_for_people_and_programs(run_main):
    _, out, _ = run_main("models")
    lines = out.splitlines()
    assert len(lines) == 10
    assert lines[0] == "qwen3-30b-a3b        30.5B,   3.4B active   48 MoE layers of 128 experts, top 8"
    listed = json.loads(run_main("models", "--json")[1])
    assert [model["name"] for model in listed] == [line.split()[0] for line in lines]
    assert listed[0]["parameters"] == 30_532_122_624
    assert (listed[0]["hidden"], listed[0]["attention"]["kind"]) == (2048, "gqa")


@pytest.mark.parametrize(
    "arguments",
    [["models"], ["models", "--json"], ["show", "RESULT"], ["run", "RESULT"], ["recording", "LOAD", "--json"]],
)
def test_torch_is_loaded_to_measure_only(tmp_path, arguments):
    files = {"RESULT": str(tmp_path / "result.json"), "LOAD": str(tmp_path / "load.csv")}
    Path(files["RESULT"]).write_text(made_result().model_dump_json(by_alias=True))
    Path(files["LOAD"]).write_text("layer,expert,count\n0,0,1\n")
    arguments = [files.get(argument, argument) for argument in arguments]
    code = f"""
import sys
from bench_worker.__main__ import main
main({arguments!r})
sys.exit(sum(name.partition(".")[0] in ("torch", "deepspeed") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0


def test_the_machine_is_described_for_people_and_programs(run_main):
    machine = json.loads(run_main("machine", "--json")[1])
    assert {"name", "fingerprint", "device", "cores", "memory_bytes", "gpus", "versions"} <= set(machine)
    assert set(machine["backends"]) == {"auto", "deepspeed", "loop", "padded", "zentorch", "deepspeed_layer"}
    _, out, _ = run_main("machine")
    assert out == f"{machine['name']} ({machine['fingerprint']}), {machine['memory_bytes'] / 1e9:,.1f} GB\n"


def test_a_result_is_shown_whole_or_in_part(run_main, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(made_result().model_dump_json(by_alias=True))
    _, out, _ = run_main("show", path)
    assert out.startswith("Untitled experiment on here\n\nbase at 1×8: ok, error 1.0e-03")
    assert run_main("show", path, "schema") == (0, "1\n", [])
    assert run_main("show", path, "runs.0.steps.ranks.0.stages_us.route.gate") == (0, "[0.5]\n", [])
    assert run_main("show", path, "runs.1") == (
        2, "", ["runs.1: there is no such part; runs is a list of 1, counted from 0"]
    )  # fmt: skip


def test_steps_of_a_result_are_written_as_a_trace(run_main, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(made_result().model_dump_json(by_alias=True))
    code, out, _ = run_main("show", path, "--perfetto", "0")
    assert code == 0
    assert [e["dur"] for e in json.loads(out)["traceEvents"] if e["name"] == "route"] == [1.5]
    refused = "steps: 1 is not within the run's steps, which are 0 to 0"
    assert run_main("show", path, "--perfetto", "1") == (2, "", [refused])
    refused = "--run: 1 is not a run of this result, which are 0 to 0"
    assert run_main("show", path, "--perfetto", "0", "--run", "1") == (2, "", [refused])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: None, "can't be read: No such file or directory"),
        (lambda p: p.mkdir(), "can't be read: Is a directory"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "is not a result file of schema 1 (the document: Invalid JSON"),
        (lambda p: p.write_text('{"base": {"model": "olmoe-1b-7b"}}'), "is not a result file of schema 1 (experiment:"),
    ],
    ids=["missing", "folder", "binary", "experiment"],
)
def test_a_file_that_is_no_result_exits_with_2(run_main, tmp_path, write, message):
    path = tmp_path / "result.json"
    write(path)
    code, out, (said,) = run_main("show", path)
    assert (code, out) == (2, "")
    assert said.startswith(f"result: {path} {message}")


@pytest.mark.parametrize("arguments", [[], ["measure"], ["run"], ["models", "--fast"]])
def test_a_command_line_that_makes_no_sense_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m bench_worker" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_crash():
    with subprocess.Popen([*PROGRAM, "models"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_a_terminal_without_unicode_still_gets_its_text(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(made_result().model_dump_json(by_alias=True))
    done = program("show", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert r"base at 1\xd78: ok" in done.stdout


# --- recording


def test_a_recording_is_made_and_described(run_main, tmp_path):
    source, out = tmp_path / "load.csv", tmp_path / "mine.npz"
    source.write_text("layer,expert,count\n3,0,30\n3,1,10\n")
    assert run_main("recording", source, "--out", out, "--experts", 4) == (
        0,
        "1 layer of 4 experts, counted; an unknown number of experts a token; hottest expert 3.00 to 3.00 × the mean\n",
        [],
    )
    assert read_recording(out).counts.tolist() == [[30, 10, 0, 0]]
    code, said, _ = run_main("recording", out, "--json")
    assert (code, json.loads(said)) == (
        0,
        {"layers": [3], "experts": 4, "top_k": None, "tokens": None, "dropped_rows": 0, "sequences": None,
         "imbalance": [3.0], "counts": [[30, 10, 0, 0]], "sha256": read_recording(out).content_hash},
    )  # fmt: skip


def test_what_is_left_out_of_a_recording_is_said(run_main, tmp_path):
    source = tmp_path / "load.jsonl"
    source.write_text("[[0, 1]]\n" * 5 + "[[2, 1]]\n" + "[[0, 3]]\n" * 70)
    code, out, _ = run_main("recording", source)
    assert code == 0
    assert out.splitlines()[1] == "70 rows of a profiling pass were left out."


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["empty"], "recording: empty: is empty"),
        (["nowhere"], "recording: nowhere: there is no such file"),
        (["good", "good"], "recording: good: one file makes a recording, unless SGLang wrote one for each rank"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recording_exits_with_2(run_main, tmp_path, names, message):
    (tmp_path / "empty").touch()
    (tmp_path / "good").write_text("layer,expert,count\n0,0,1\n")
    code, _, messages = run_main("recording", *[tmp_path / name for name in names])
    assert (code, messages) == (2, [message])


def test_without_torch_only_its_own_files_can_not_be_read(run_main, tmp_path, monkeypatch):
    torch.save({"logical_count": torch.ones(1, 2, 4)}, tmp_path / "dump.pt")
    (tmp_path / "load.csv").write_text("layer,expert,count\n0,0,1\n")
    monkeypatch.delitem(sys.modules, "bench_worker.workload.sglang_dumps", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, messages = run_main("recording", tmp_path / "dump.pt")
    assert (code, messages) == (
        4,
        [
            "dump.pt: was written with torch.save, and only a machine with torch reads it; there, "
            "python -m bench_worker recording FILE.pt --out NAME.npz makes a file that every machine reads"
        ],
    )
    assert run_main("recording", tmp_path / "load.csv")[0] == 0


def test_a_recording_that_the_experiment_names_is_found_in_its_folder(run_main, experiment_file, tmp_path):
    (tmp_path / "loads").mkdir()
    write_recording(tmp_path / "loads" / "mine.npz", from_counts(np.ones((1, 4), np.int64)))
    path = experiment_file(load={"profile": "recorded", "recording": "mine"})
    code, _, messages = run_main("fit", path, "--recordings", tmp_path / "loads")
    assert (code, messages) == (2, ["base.load.recording: mine: holds 4 experts; tiny has 8"])
    code, _, messages = run_main("fit", path, "--recordings", tmp_path / "nowhere")
    assert (code, messages) == (2, [f"--recordings: {tmp_path}/nowhere is not a folder"])


def test_the_machine_has_the_fingerprint_of_its_results(experiment_file):
    machine = json.loads(program("machine", "--json").stdout)
    measured = json.loads(program("run", experiment_file()).stdout)["environment"]
    assert machine["fingerprint"] == measured["fingerprint"]


# --- the machine's limits


@pytest.fixture
def small_calibration(monkeypatch):
    from bench_worker import calibrate

    monkeypatch.setattr(calibrate, "BUFFER_BYTES", 4096)
    monkeypatch.setattr(calibrate, "PRODUCTS", ((4, 64, 16),))
    monkeypatch.setattr(calibrate.host, "last_level_cache_bytes", lambda: 1024)


def test_calibrate_measures_and_keeps_the_ceilings_for_people_and_programs(
    run_main, small_calibration, tmp_path, monkeypatch
):
    monkeypatch.setenv("MOESCOPE_CACHE", str(tmp_path))
    code, out, _ = run_main("calibrate", "--json")
    document = json.loads(out)
    assert code == 0
    (kept,) = tmp_path.glob(f"ceilings-*-{document['ceilings']['threads']}.json")
    assert document["kept"] == str(kept)
    assert json.loads(kept.read_text()) == document["ceilings"]
    _, out, _ = run_main("calibrate")
    assert document["name"] in out
    assert "GFLOP/s" in out
    assert out.splitlines()[-1] == f"Kept in {kept}"


def test_calibrate_says_where_nothing_can_be_kept(run_main, small_calibration, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("MOESCOPE_CACHE", str(tmp_path / "taken"))
    assert json.loads(run_main("calibrate", "--json")[1])["kept"] is None
    assert "can't be written to" in run_main("calibrate")[1]


def test_calibrate_takes_threads_that_there_can_be(run_main):
    assert run_main("calibrate", "--threads", "0") == (2, "", ["--threads: 0 is not from 1 to 1024"])


def test_kernels_gives_programs_a_list_of_rows(run_main, small_calibration, monkeypatch, tiny_config):
    from bench_worker import kernel_table

    monkeypatch.setattr(kernel_table, "ROUNDS", 3)
    code, out, _ = run_main("kernels", "--model", tiny_config, "--tokens", "1,5", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["tokens"] for row in rows} == {1, 5}
    assert {"auto", "deepspeed", "loop", "padded", "zentorch", "deepspeed_layer"} == {row["backend"] for row in rows}
    assert set(rows[0]) >= {
        "backend", "tokens", "experts_us", "layer_us", "floor_us", "rel_error", "padding_waste", "available", "reason"
    }  # fmt: skip


def test_kernels_writes_the_table_with_its_machine_and_fresh_ceilings(
    capsys, small_calibration, monkeypatch, tiny_config, tmp_path
):
    from bench_worker import calibrate, kernel_table
    from bench_worker.kernel_report import Table

    monkeypatch.setattr(kernel_table, "ROUNDS", 3)
    monkeypatch.setattr(calibrate, "calibrate_apart", lambda threads: calibrate.calibrate(torch.device("cpu"), threads))
    out = tmp_path / "table.json"
    arguments = ["kernels", "--model", str(tiny_config), "--tokens", "1,5", "--out", str(out)]
    assert command_line.main(arguments) == 0
    printed, said = capsys.readouterr()
    assert printed == ""
    phases = [event["phase"] for event in events(said) if event["event"] == "progress"]
    assert list(dict.fromkeys(phases)) == ["calibrate", "prepare", "sizes"]
    table = Table.model_validate_json(out.read_bytes())
    assert table.environment["fingerprint"]
    assert list(table.ceilings) == [str(torch.get_num_threads())]
    assert {row.tokens for row in table.rows} == {1, 5}


def test_kernels_refuses_a_place_where_nothing_can_be_written(run_main, tmp_path):
    code, _, (said,) = run_main("kernels", "--out", tmp_path / "nowhere" / "table.json")
    assert code == 2
    assert said.startswith("--out: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "--tokens: '0' is not a whole number from 1 to 131,072"),
        (["--model", "gpt-9"], "base.model: 'gpt-9' is not one of "),
        (["--dtype", "fp8"], "base.kernels.dtype: 'fp8' is not one of "),
        (["--load", "recorded"], "base.load."),
    ],
)
def test_kernels_refuses_what_there_is_not(run_main, arguments, message):
    code, out, (said,) = run_main("kernels", *arguments)
    assert (code, out) == (2, "")
    assert said.startswith(message)


def test_a_backend_that_can_not_run_here_exits_with_4(run_main, experiment_file, monkeypatch):
    from bench_worker.kernels import zentorch

    monkeypatch.setattr(zentorch, "missing", lambda device: "it is away")
    file = experiment_file(kernels={"experts": "zentorch"})
    assert run_main("run", file) == (4, "", ["kernels.experts: 'zentorch' can't run: it is away"])
