# A worker that measures on the processor. docker-compose.yml says what runs.
FROM python:3.11.14-slim-bookworm AS installed
RUN python -m venv /opt/venv
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH
# An index of CPU-only wheels saves the CUDA libraries that torch's wheel for Linux carries.
ARG PIP_EXTRA_INDEX_URL
COPY requirements/web.txt requirements/worker.txt requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --requirement requirements/worker.txt

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 10001 --create-home moescope
# What an attempt at an experiment needs and leaves while it lasts.
RUN install --directory --owner=moescope /var/lib/moescope
COPY --from=installed /opt/venv /opt/venv
WORKDIR /app
COPY manage.py ./
COPY bench_worker bench_worker
COPY webapp webapp
# The commit that results name; an image has no repository to ask.
ARG MOESCOPE_COMMIT
ENV MOESCOPE_COMMIT=$MOESCOPE_COMMIT
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 MOESCOPE_DATA=/var/lib/moescope
USER 10001
