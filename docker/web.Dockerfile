# The pages, beat and the migrations. Built from the top of the repository by docker-compose.yml, which says what runs.
FROM node:24.18.0-bookworm-slim AS packages
WORKDIR /packages
COPY webapp/package.json webapp/package-lock.json webapp/.npmrc ./
RUN npm ci --omit=dev

FROM python:3.11.14-slim-bookworm AS installed
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /app
COPY requirements/web.txt requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --requirement requirements/web.txt
COPY manage.py ./
COPY bench_worker bench_worker
COPY samples samples
COPY webapp webapp
COPY --from=packages /packages/node_modules webapp/node_modules
RUN python manage.py collectstatic --no-input --verbosity 0 && rm -r webapp/node_modules

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 10001 --create-home moescope
COPY --from=installed /opt/venv /opt/venv
COPY --from=installed /app /app
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
