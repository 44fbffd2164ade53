"""Questions that need no run, over the API: what an experiment would take, whether a model fits, how runs differ."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bench_worker import capacity, spec
from bench_worker.devices import Enough
from bench_worker.errors import DoesNotFit, SpecError
from webapp.api.answers import one, refuse
from webapp.api.experiments import pool_of
from webapp.api.problems import Refused
from webapp.api.schema import POOL, problems
from webapp.experiments import compare_read, compare_summary, compare_views, memory, sizing
from webapp.experiments.estimate import Estimate
from webapp.experiments.redundancy import Cost
from webapp.traces.store import traces_library


class EnoughDevices(BaseModel):
    """The least number of such devices that a deployment fits on, by memory alone."""

    devices: int
    tp: int
    dp: int

    @classmethod
    def of(cls, least: Enough | None) -> EnoughDevices | None:
        return None if least is None else cls(devices=least.devices, tp=least.layout.tp, dp=least.layout.dp)


class ExpectedTime(BaseModel):
    """From experiments like it that ended well."""

    seconds: float = Field(description="Their median, for as many runs.")
    least: float
    most: float
    count: int
    machine: str

    @classmethod
    def of(cls, time: Estimate | None) -> ExpectedTime | None:
        return None if time is None else cls(**{name: getattr(time, name) for name in cls.model_fields})


class CopiesCost(BaseModel):
    """What redundant experts take on each rank."""

    copies: int
    bytes: int
    tokens: int | None = Field(description="Whose KV cache that memory could hold instead.")
    requests: int | None = Field(description="How many fewer are held at once; null where no device is known.")

    @classmethod
    def of(cls, cost: Cost | None) -> CopiesCost | None:
        return None if cost is None else cls(**cost._asdict())


class OutlookState(BaseModel):
    """What an experiment would take. Nothing was queued."""

    refused: str | None = Field(description="The sentence that it would be refused with now; null where it would not.")
    variants: int
    corners: int
    runs: int
    deployment: capacity.Fit = Field(description="The whole model on one device of the layout, at the largest corner.")
    least: EnoughDevices | None = Field(description="Where one device like the machine's is not enough.")
    measurement_bytes: int
    machine: str | None = Field(description="The one of the pool with the largest device.")
    device_bytes: int | None
    fits: bool = Field(description="Whether the measurement does; true, too, where no machine is known.")
    time: ExpectedTime | None


class MeasurementState(BaseModel):
    """What measuring one layer takes on a machine here."""

    fit: capacity.Fit
    machine: str | None
    without_attention: str | None = Field(description="Why attention is left out; null where it is measured, too.")
    refused: list[str] = Field(description="What of the deployment can't be measured.")


class CapacityState(BaseModel):
    """Will it fit: two answers, for the deployment and for the measurement."""

    device: str
    ranks: int = Field(description="Devices of the layout.")
    deployment: capacity.Fit = Field(description="The whole model on the worst rank.")
    longest_context: int = Field(description="Tokens of a sequence that fit at this concurrency.")
    least: EnoughDevices | None = Field(description="Where it doesn't fit; null, too, where no number is enough.")
    warning: str | None
    copies: CopiesCost | None = Field(description="Where there are redundant experts.")
    measurement: MeasurementState

    @classmethod
    def of(cls, answer: sizing.Answer) -> CapacityState:
        measurement = answer.measurement
        machine = measurement.machine.name if measurement.machine else None
        return cls(
            device=answer.device.name,
            ranks=answer.ranks,
            deployment=answer.deployment,
            longest_context=answer.longest_context,
            least=EnoughDevices.of(answer.least),
            warning=answer.warning,
            copies=CopiesCost.of(answer.copies),
            measurement=MeasurementState(
                fit=measurement.fit,
                machine=machine,
                without_attention=measurement.without_attention,
                refused=measurement.refused,
            ),
        )


class ComparedRuns(BaseModel):
    """Runs against one of them."""

    sentence: str = Field(description="The answer, or why there is none.")
    differs: str = Field(description="In what they differ.")
    base: str = Field(description="The baseline.")
    corner: str = Field(description="Whose stages the rows have.")
    rows: list[dict[str, Any]] = Field(description="As in the table of the page: " + ", ".join(compare_summary.COLUMNS))
    markdown: str = Field(description="The same for a message.")
    url: str = Field(description="Its page.")


QUESTION = [
    *(
        OpenApiParameter(name, str, description=f"{sizing.HELP.get(name) or f'{label}.'} {usual} without it.")
        for name, (_, label, usual) in sizing.ASKED.items()
    ),
    OpenApiParameter("device", str, description=f"A device or `machine-ID`; {sizing.DEVICE} without it."),
]


class ExperimentPlan(APIView):
    @extend_schema(
        operation_id="experiments_plan",
        parameters=[POOL],
        request=spec.Experiment,
        responses={200: OutlookState, **problems(413, 422)},
    )
    def post(self, request: Request) -> Response:
        """What an experiment file would take; nothing is queued."""
        pool = pool_of(request)
        experiment = spec.parse_experiment(request.body, traces_library())
        outlook = memory.outlook(experiment, pool)
        found = OutlookState(
            refused=_refusal(experiment, pool),
            variants=outlook.variants,
            corners=outlook.corners,
            runs=outlook.runs,
            deployment=outlook.deployment,
            least=EnoughDevices.of(outlook.least),
            measurement_bytes=outlook.measurement_bytes,
            machine=outlook.machine.name if outlook.machine else None,
            device_bytes=outlook.device_bytes,
            fits=outlook.fits,
            time=ExpectedTime.of(outlook.time),
        )
        return one(found)


class Capacity(APIView):
    @extend_schema(operation_id="capacity", parameters=QUESTION, responses={200: CapacityState, **problems(422)})
    def get(self, request: Request) -> Response:
        """Will a preset fit on a device; no run is needed."""
        return _sized(sizing.SizingForm(request.query_params.dict()))

    @extend_schema(
        operation_id="capacity_of_config",
        parameters=[parameter for parameter in QUESTION if parameter.name != "model"],
        request=OpenApiTypes.OBJECT,
        responses={200: CapacityState, **problems(413, 422)},
    )
    def post(self, request: Request) -> Response:
        """The same of the Hugging Face `config.json` in the body, which is read and not kept."""
        text = request.body.decode("utf-8", "replace")
        with TemporaryDirectory(prefix="moescope-config-") as folder:
            return _sized(sizing.OwnModelForm(request.query_params.dict() | {"config": text}, Path(folder)))


class Compare(APIView):
    @extend_schema(
        operation_id="compare",
        parameters=[
            OpenApiParameter("runs", str, required=True, description="Numbers of runs, as in `3,5` or `3-9`."),
            OpenApiParameter("base", int, description="One of them, the baseline; the first without it."),
            OpenApiParameter("corner", str, description="Whose stages are compared; the baseline's last without it."),
        ],
        responses={200: ComparedRuns, **problems(422)},
    )
    def get(self, request: Request) -> Response:
        """Runs against one of them, step by step where they ran interleaved."""
        query = request.query_params
        try:
            numbers = compare_read.parse(query.getlist("runs"))
            page = compare_views.asked(query, numbers)
        except compare_read.Refused as refused:
            field, _, message = str(refused).partition(": ")
            raise Refused(field, message) from None
        url = compare_views.address(numbers, query)
        found = ComparedRuns(
            sentence=page.sentence,
            differs=page.differs.sentence,
            base=page.base.name,
            corner=page.corner,
            rows=list(compare_summary.rows(page)),
            markdown=compare_summary.markdown(page, "Compare", request.build_absolute_uri(url)),
            url=url,
        )
        return one(found)


def _refusal(experiment: spec.Experiment, pool: str) -> str | None:
    try:
        memory.check(experiment, pool)
    except (SpecError, DoesNotFit) as error:
        return str(error)
    return None


def _sized(form: sizing.SizingForm) -> Response:
    answer = form.answer()
    if answer is None:
        refuse(form)
    return one(CapacityState.of(answer))
