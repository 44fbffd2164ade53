"""The API. Its views let programs in themselves, by token; the schema and its page are for members."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, include, path, re_path
from rest_framework.views import APIView

from webapp.api import docs, experiments, history, library, machines, measured, nothing, questions, schedules, team
from webapp.api.problems import too_large
from webapp.limits import lets_in_itself, takes_up_to
from webapp.traces.uploads import MAX_RECORDING_BYTES, MAX_TRACE_BYTES


def _at(address: str, view: type[APIView], name: str, most_bytes: int | None = None) -> URLPattern:
    """``most_bytes``: of its bodies, where they are larger than usual."""
    asked: Any = lets_in_itself(too_large)(view.as_view())
    return path(address, asked if most_bytes is None else takes_up_to(most_bytes)(asked), name=name)


_v1 = [
    _at("experiments/", experiments.ExperimentList, "experiments"),
    _at("experiments/plan/", questions.ExperimentPlan, "plan"),
    _at("experiments/<int:pk>/", experiments.ExperimentOne, "experiment"),
    _at("experiments/<int:pk>/result/", measured.ExperimentResult, "result"),
    _at("experiments/<int:pk>/tables/", measured.ExperimentTables, "tables"),
    _at("experiments/<int:pk>/trace/", measured.ExperimentTrace, "steps"),
    _at("experiments/<int:pk>/cancel/", experiments.ExperimentCancel, "cancel"),
    _at("experiments/<int:pk>/rerun/", experiments.ExperimentRerun, "rerun"),
    _at("experiments/<int:pk>/next/<int:place>/", experiments.ExperimentNext, "next"),
    _at("experiments/<int:pk>/restore/", experiments.ExperimentRestore, "restore"),
    _at("runs/", measured.RunList, "runs"),
    _at("runs/<int:pk>/", measured.RunOne, "run"),
    _at("compare/", questions.Compare, "compare"),
    _at("capacity/", questions.Capacity, "capacity"),
    _at("traces/", library.TraceList, "traces", MAX_TRACE_BYTES),
    _at("traces/<slug:name>/", library.TraceOne, "trace"),
    _at("traces/<slug:name>/file/", library.TraceFile, "trace-file"),
    _at("recordings/", library.RecordingList, "recordings", MAX_RECORDING_BYTES),
    _at("recordings/<slug:name>/", library.RecordingOne, "recording"),
    _at("recordings/<slug:name>/file/", library.RecordingFile, "recording-file"),
    _at("schedules/", schedules.ScheduleList, "schedules"),
    _at("schedules/<int:pk>/", schedules.ScheduleOne, "schedule"),
    _at("schedules/<int:pk>/switch/", schedules.ScheduleSwitch, "switch"),
    _at("schedules/<int:pk>/run/", schedules.ScheduleRun, "run-now"),
    _at("series/", history.SeriesList, "series"),
    _at("series/<int:pk>/", history.SeriesOne, "one-series"),
    _at("changes/", history.ChangeList, "changes"),
    _at("changes/<int:pk>/", history.ChangeOne, "change"),
    _at("alerts/", history.AlertList, "alerts"),
    _at("machines/", machines.MachineList, "machines"),
    _at("machines/<int:pk>/", machines.MachineOne, "machine"),
    _at("machines/<int:pk>/kernels/", machines.Kernels, "kernels"),
    _at("team/", team.MemberList, "team"),
    _at("team/invite/", team.Invite, "invite"),
    _at("team/<int:pk>/link/", team.Link, "link"),
    _at("team/<int:pk>/role/", team.MemberRole, "role"),
    _at("team/<int:pk>/shut-out/", team.ShutOut, "shut-out"),
    _at("team/<int:pk>/take-back/", team.TakeBack, "take-back"),
    _at("deeds/", team.DeedList, "deeds"),
    _at("tokens/", team.TokenList, "tokens"),
    _at("tokens/<int:pk>/revoke/", team.Revoke, "revoke"),
    path("schema/", docs.schema, name="schema"),
    path("docs/", docs.page, name="docs"),
    # whatever it is: a dot, and so <path:…>, leaves out what holds a line break
    re_path(r"^[\s\S]*\Z", lets_in_itself(too_large)(nothing.Nothing.as_view()), name="nothing"),
]

urlpatterns = [path("api/v1/", include((_v1, "api")))]
