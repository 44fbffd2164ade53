"""The page that explains the API, and the schema that it draws: Swagger UI, from our own static files."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.views import SpectacularAPIView
from rest_framework.negotiation import DefaultContentNegotiation

_schema = SpectacularAPIView.as_view(
    authentication_classes=[],
    permission_classes=[],
    content_negotiation_class=DefaultContentNegotiation,  # YAML, or JSON as asked for
)


@require_safe
def schema(request: HttpRequest) -> HttpResponse:
    """For members, by their session, as every page; REST framework's views know tokens only."""
    return _schema(request)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")
