"""How the OpenAPI schema tells what the code does."""

from __future__ import annotations

from typing import Any

from django import forms
from drf_spectacular.contrib.pydantic import PydanticExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from webapp.api.problems import CONTENT_TYPE, Problem
from webapp.traces.uploads import FilesField, ImportForm

POOL = OpenApiParameter("pool", str, description="Whose workers may take it; without it, the default pool.")
LABELS = OpenApiParameter(
    "label", str, many=True, description="A mark in the history, `key=value`; may be given 20 times."
)
KEY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER,
    description="1 to 200 visible ASCII characters. The same request with the same key, within a day, is done once.",
)  # fmt: skip
CURSOR = OpenApiParameter("cursor", str, description="Of the page, from `next` or `previous`.")
PAGE_SIZE = OpenApiParameter("page_size", int, description="At most 200; 50 without it.")

_WHEN = {
    401: "No token, or one that lets nobody in.",
    403: "The token's scope or its user's role is not enough, or somebody else made it.",
    404: "There is none, or the cursor is none.",
    409: "Not in this state.",
    413: "The body is too large.",
    415: "The body is of another kind.",
    422: "A value is not allowed; the problem names the field.",
}


def problems(*statuses: int) -> dict[Any, Any]:
    """Responses of an operation for those statuses, and for those that any may have."""
    return {
        (status, CONTENT_TYPE): OpenApiResponse(Problem, description=_WHEN[status])
        for status in sorted({401, 403, *statuses})
    }


def made_once(
    document: type[BaseModel],
    *statuses: int,
    done: str = "queued",
    before: str = "Had been {done} by an earlier request with this key.",
) -> dict[Any, Any]:
    """Responses of an operation that makes what ``document`` tells, or finds it made before, and its `problems`."""
    return {
        201: OpenApiResponse(document, description=f"{done.capitalize()}."),
        200: OpenApiResponse(document, description=before.format(done=done)),
        **problems(*statuses),
    }


def upload(form: type[ImportForm]) -> dict[str, Any]:
    """The request of an operation that takes the fields of ``form`` as ``multipart/form-data``."""
    file = {"type": "string", "format": "binary"}
    parts: dict[str, dict[str, Any]] = {}
    for name, field in form().fields.items():
        if isinstance(field, FilesField):
            parts[name] = {"type": "array", "items": file} if field.widget.allow_multiple_selected else file
        elif isinstance(field, forms.IntegerField):
            bounds = {"minimum": field.min_value, "maximum": field.max_value}
            parts[name] = {"type": "integer", **{key: value for key, value in bounds.items() if value is not None}}
        else:
            parts[name] = {"type": "string"}
        parts[name] = {**parts[name], "description": field.help_text}
    required = [name for name, field in form().fields.items() if field.required]
    return {"multipart/form-data": {"type": "object", "properties": parts, "required": required}}


class AskedExtension(PydanticExtension):
    """Documents that the API takes: unlike those that it gives, what has a default may be left out."""

    target_class = "webapp.api.answers.Asked"
    match_subclasses = True
    priority = 1

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        template = "#/components/schemas/{model}"
        _, document = models_json_schema([(self.target, "validation")], ref_template=template)
        parts = document["$defs"]
        own = parts.pop(self.target.__name__)
        for name, part in parts.items():
            component = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, object=name, schema=part)
            auto_schema.registry.register_on_missing(component)
        return own


class ExperimentExtension(AskedExtension):
    """The measuring program's own document."""

    target_class = "bench_worker.spec.Experiment"
    match_subclasses = False
    priority = 1


class BearerTokenScheme(OpenApiAuthenticationExtension):
    target_class = "webapp.api.access.BearerToken"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A token made at /tokens/."}
