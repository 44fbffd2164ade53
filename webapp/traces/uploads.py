"""The two forms that bring files in. Files lie on disk while they are read, under the names that they came with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.core.validators import RegexValidator

from bench_worker.workload.recording_files import MAX_BYTES, RecordingError
from bench_worker.workload.requests import TraceError
from webapp.accounts.models import User
from webapp.traces import recording_store, store
from webapp.traces.models import Recording, Trace
from webapp.ui.formatting import size

#: Of a whole request: the files, and a little for the rest of the form.
MAX_TRACE_BYTES, MAX_RECORDING_BYTES = 1_500_000_000, MAX_BYTES + 1_000_000
#: Bytes of a file's name that every file system takes, with room for what is put beside it.
MAX_NAME_BYTES = 200


class ImportForm(forms.Form):
    """What both have in common. ``kind`` begins the ids of its fields."""

    kind: ClassVar[str]

    if TYPE_CHECKING:

        def keep(self, files: Sequence[Path], name: str | None, by: User) -> tuple[Trace | Recording, bool]:
            """The entry and whether it is new. Raises `TraceError` or `RecordingError`."""

    name = forms.CharField(
        required=False,
        help_text="How experiments name it; empty takes the file's own.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    def __init__(self, data: Any = None, files: Any = None) -> None:
        super().__init__(data, files, auto_id=f"{self.kind}_%s", label_suffix="")

    def kept(self, by: User) -> tuple[Trace | Recording, bool] | None:
        """The entry and whether it is new; None where the form says beside its file or name why there is none."""
        if not self.is_valid():
            return None
        try:
            with on_disk(self.cleaned_data["file"]) as files:
                return self.keep(files, self.cleaned_data["name"] or None, by)
        except (TraceError, RecordingError) as error:
            sentence = str(error)
            self.add_error("name" if sentence.startswith("name: ") else "file", sentence.removeprefix("name: "))
            return None


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    """One file or several; a list either way. An empty one is left to whoever reads it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(label="File", allow_empty_file=True, error_messages={"required": "Choose a file."}, **kwargs)

    def clean(self, data: Any, initial: Any = None) -> list[Any]:
        several = data if isinstance(data, (list, tuple)) else [data]
        return [super(FilesField, self).clean(one, initial) for one in several or [None]]


def _attributes(limit_bytes: int) -> dict[str, Any]:
    return {"data-max-bytes": limit_bytes, "data-max-size": size(limit_bytes)}


class TraceForm(ImportForm):
    kind = "trace"
    file = FilesField(
        help_text="CSV with arrival_s,prompt_tokens,output_tokens; Azure's CSV; Mooncake's JSON lines.",
        widget=forms.FileInput(attrs=_attributes(MAX_TRACE_BYTES)),
    )
    first = forms.IntegerField(
        label="First requests alone",
        required=False,
        min_value=1,
        max_value=store.MAX_REQUESTS,
        help_text=f"Of a long trace; empty keeps all, at most {store.MAX_REQUESTS:,}.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )
    field_order = ("file", "name", "first")

    def keep(self, files: Sequence[Path], name: str | None, by: User) -> tuple[Trace, bool]:
        return store.import_trace(files[0], name, by, self.cleaned_data["first"])


class RecordingForm(ImportForm):
    kind = "recording"
    file = FilesField(
        help_text="npz, JSON, JSON lines or CSV of counts or expert ids; SGLang's dumps, those of all ranks together.",
        widget=FilesInput(attrs=_attributes(MAX_RECORDING_BYTES)),
    )
    domain = forms.CharField(
        required=False,
        help_text="Of a JSON file with several: the one to keep.",
        validators=[RegexValidator(r"^[^/]*\Z", "A domain's name has no slash.")],
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    experts = forms.IntegerField(
        required=False,
        min_value=1,
        help_text="Of the model, where the last ones were never chosen; empty goes by the file.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )
    field_order = ("file", "name", "domain", "experts")

    def keep(self, files: Sequence[Path], name: str | None, by: User) -> tuple[Recording, bool]:
        if domain := self.cleaned_data["domain"]:
            files = [Path(f"{file}#{domain}") for file in files]
        return recording_store.import_recording(files, name, by, self.cleaned_data["experts"])


@contextmanager
def on_disk(uploads: Sequence[TemporaryUploadedFile]) -> Iterator[list[Path]]:
    """The uploaded files under their own names, as sentences about them say them."""
    with TemporaryDirectory(prefix="moescope-upload-") as directory:
        paths = [Path(directory, str(number), _short(str(upload.name))) for number, upload in enumerate(uploads)]
        for path, upload in zip(paths, uploads, strict=True):
            path.parent.mkdir()
            path.symlink_to(upload.temporary_file_path())
        yield paths


def _short(name: str) -> str:
    """The end of a name that is too long for the file system."""
    return name.encode()[-MAX_NAME_BYTES:].decode(errors="ignore")
