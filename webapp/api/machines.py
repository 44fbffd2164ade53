"""Machines over the API, and the tables of their kernels."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.accounts.roles import member
from webapp.api.answers import Asked, Page, accepted, asked, made, one, page, refuse
from webapp.api.experiments import ExperimentDetail
from webapp.api.once import once
from webapp.api.schema import CURSOR, KEY, PAGE_SIZE, made_once, problems
from webapp.experiments import queue
from webapp.experiments.kernels_form import MODEL, KernelsForm
from webapp.experiments.models import Experiment, Machine

Tokens = Annotated[int, Field(ge=1, le=10**9)]


class MachineState(BaseModel):
    """One state of one measuring computer: its hardware, software and settings."""

    id: int
    name: str
    host: str
    pool: str
    fingerprint: str
    details: dict[str, Any]
    first_seen: datetime
    last_seen: datetime

    @classmethod
    def of(cls, machine: Machine) -> MachineState:
        return cls(**{name: getattr(machine, name) for name in cls.model_fields})


class MachinePage(Page):
    results: list[MachineState]


class KernelsAsked(Asked):
    """One MoE layer whose expert kernels are timed, each at each number of tokens."""

    model: str = Field(default=MODEL, description="A preset.")
    tokens: list[Tokens] = Field(default=[1, 8, 64, 512, 2048], description="Of a step, each a column.")
    dtype: str = Field(default="bfloat16", description="Of weights and activations.")
    load: str = Field(default="uniform", description="Of the experts: `uniform` or `zipf`.")
    quantization: str = Field(default="none", description="Format of the experts: `none`, `int8` or `int4`.")


class MachineList(APIView):
    @extend_schema(
        operation_id="machines_list", parameters=[CURSOR, PAGE_SIZE], responses={200: MachinePage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Every state of every machine that a worker registered, newest first."""
        return page(request, self, Machine.objects.all(), MachineState.of)


class MachineOne(APIView):
    @extend_schema(operation_id="machines_get", responses={200: MachineState, **problems(404)})
    def get(self, request: Request, pk: int) -> Response:
        """One state of one machine."""
        return one(MachineState.of(get_object_or_404(Machine, pk=pk)))


class Kernels(APIView):
    @extend_schema(
        operation_id="machines_kernels",
        parameters=[KEY],
        request=KernelsAsked,
        responses=made_once(ExperimentDetail, 404, 413, 422),
    )
    def post(self, request: Request, pk: int) -> Response:
        """Have a worker of the machine's pool measure the expert kernels; the table is the result of what is queued."""
        pool = get_object_or_404(Machine, pk=pk).pool

        def make() -> Experiment:
            given = asked(request, KernelsAsked).model_dump()
            form = accepted(KernelsForm(given | {"tokens": ", ".join(map(str, given["tokens"]))}))
            if not form.fits(pool):
                refuse(form)
            return queue.enqueue_kernels(form.asked, author=member(request), pool=pool)

        row, is_new = once(request, Experiment, make)
        return made(ExperimentDetail.of(row), is_new)
