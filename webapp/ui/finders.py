"""Finds the few npm files that pages load, so that nothing else of ``node_modules`` is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

#: Name under ``/static/`` -> file under ``webapp/node_modules``.
VENDOR_FILES = {
    "vendor/chart.umd.min.js": "chart.js/dist/chart.umd.min.js",
    "vendor/htmx.min.js": "htmx.org/dist/htmx.min.js",
    "vendor/idiomorph-ext.min.js": "idiomorph/dist/idiomorph-ext.min.js",
    "vendor/pico.classless.min.css": "@picocss/pico/css/pico.classless.min.css",
}
NODE_MODULES = Path(settings.BASE_DIR) / "webapp" / "node_modules"


def missing() -> list[Path]:
    """Files that ``npm ci`` should have brought, and that are neither there nor among the collected static files."""
    collected = Path(settings.STATIC_ROOT or "/nowhere")
    absent = (source for served, source in VENDOR_FILES.items() if not (collected / served).is_file())
    return [file for source in absent if not (file := NODE_MODULES / source).is_file()]


class VendorFinder(BaseFinder):
    """A static-files finder over `VENDOR_FILES`."""

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        file = NODE_MODULES / VENDOR_FILES[path] if path in VENDOR_FILES else None
        found = str(file) if file and file.is_file() else None
        if find_all:
            return [found] if found else []
        return found

    def list(self, ignore_patterns: Any) -> Iterator[tuple[str, Any]]:
        for name, source in VENDOR_FILES.items():
            yield name, _OneFile(NODE_MODULES / source)


class _OneFile(FileSystemStorage):
    """A storage that holds a single file, whatever name it is asked for."""

    def __init__(self, file: Path) -> None:
        super().__init__(location=str(file.parent))
        self.prefix = ""
        self._file = file

    def path(self, name: str) -> str:
        return str(self._file)
