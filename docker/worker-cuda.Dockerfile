# A worker that measures on NVIDIA GPUs. docker-compose.yml says what runs.
# torch's wheel carries the CUDA libraries, and the driver comes with the NVIDIA container toolkit.
FROM python:3.11.14-slim-bookworm AS installed
RUN python -m venv /opt/venv
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/web.txt requirements/worker.txt requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --requirement requirements/worker.txt

FROM python:3.11.14-slim-bookworm
# Triton compiles the part of a kernel that runs on the host.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
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
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
