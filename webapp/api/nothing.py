"""Every address that has nothing."""

from __future__ import annotations

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


@extend_schema(exclude=True)
class Nothing(APIView):
    """A problem, as all that the API refuses."""

    def get(self, request: Request) -> Response:
        raise Http404(
            "Nothing has this address; those that have something end with a slash, and /api/v1/docs/ lists them."
        )

    post = put = patch = delete = get
