from pathlib import Path

import pytest
from django.contrib.staticfiles import finders as static_finders

from webapp.ui import finders
from webapp.ui.finders import VENDOR_FILES, VendorFinder


@pytest.fixture
def node_modules(tmp_path, monkeypatch):
    for name in VENDOR_FILES.values():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "chart.js/dist/chart.cjs").write_text("not for browsers")
    monkeypatch.setattr(finders, "NODE_MODULES", tmp_path)
    return tmp_path


def test_only_the_files_that_pages_load_are_collected(node_modules):
    found = {name: storage.open(name).read().decode() for name, storage in VendorFinder().list(None)}
    assert found == VENDOR_FILES


def test_a_served_name_leads_to_its_file(node_modules):
    path = VendorFinder().find("vendor/htmx.min.js")
    assert path == str(node_modules / "htmx.org/dist/htmx.min.js")
    assert VendorFinder().find("vendor/htmx.min.js", find_all=True) == [path]


def test_no_other_file_is_found(node_modules):
    assert VendorFinder().find("chart.js/dist/chart.cjs") is None
    assert VendorFinder().find("vendor/chart.cjs", find_all=True) == []


def test_files_that_npm_did_not_bring_are_missing(node_modules):
    assert finders.missing() == []
    (node_modules / "htmx.org/dist/htmx.min.js").unlink()
    assert finders.missing() == [node_modules / "htmx.org/dist/htmx.min.js"]
    assert VendorFinder().find("vendor/htmx.min.js") is None


def test_every_vendor_file_is_pinned_and_installed_by_npm():
    root = Path(__file__).resolve().parents[3] / "webapp"
    lock = (root / "package-lock.json").read_text()
    for name in VENDOR_FILES.values():
        package = "/".join(name.split("/")[: 2 if name.startswith("@") else 1])
        assert f'"node_modules/{package}"' in lock
    assert '"resolved"' not in lock  # no machine's registry in the repository


def test_django_finds_them():
    assert static_finders.find("moescope/tokens.css")
