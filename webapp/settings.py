"""Settings, typed and read once from the environment; what is unset is served by the embedded servers."""

from __future__ import annotations

from pathlib import Path

import environ
from csp.constants import NONE, SELF
from django.core.management.utils import get_random_secret_key

from webapp import state

BASE_DIR = Path(__file__).resolve().parent.parent

#: A variable may also come as the path of a file that holds it, under its name with ``_FILE``, as with Docker secrets.
env = environ.FileAwareEnv()

#: Everything the product writes lies under this directory.
MOESCOPE_DATA = Path(env.str("MOESCOPE_DATA", default=str(BASE_DIR / "var"))).expanduser().resolve()
#: The hardware pool this machine's worker serves, which is also the name of its queue.
MOESCOPE_POOL = env.str("MOESCOPE_POOL", default="default")
#: What is measured here, as ``key=value,key=value``: marks in the history; see `webapp.experiments.labels`.
MOESCOPE_LABELS = env.list("MOESCOPE_LABELS", default=[])
#: A file that a worker or beat touches as long as it does its work, for health checks; empty: none.
MOESCOPE_ALIVE = env.str("MOESCOPE_ALIVE", default="")
#: Memory that a measurement on this machine may hold, in 10⁹ bytes; 0: what is free when it starts, but for a reserve.
MOESCOPE_MEMORY_GB = env.float("MOESCOPE_MEMORY_GB", default=0.0)
#: Older experiments lose their single steps and keep their summaries; 0: never. See `webapp.history.retention`.
MOESCOPE_KEEP_STEPS_DAYS = env.int("MOESCOPE_KEEP_STEPS_DAYS", default=0)
#: Seconds between two looks for experiments that were lost or that no message reached.
SWEEP_S = 10.0

_running = state.read(MOESCOPE_DATA)
DATABASE_URL = env.str("DATABASE_URL", default="").strip() or (_running.database_url if _running else "")
BROKER_URL = env.str("BROKER_URL", default="").strip() or (_running.broker_url if _running else "")

#: Marks a key that nobody chose; Django's deployment checks know it by this, too.
PASSING_KEY = "django-insecure-"
SECRET_KEY = (
    env.str("SECRET_KEY", default="").strip()
    or state.secret_key(MOESCOPE_DATA)
    or PASSING_KEY + get_random_secret_key()
)
#: Names that this machine's own browser and its health checks come by; they always count.
LOCAL_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
ALLOWED_HOSTS = [*env.list("ALLOWED_HOSTS", default=[]), *LOCAL_HOSTS]
DEBUG = False

#: Browsers come by https, through a proxy that says so in ``X-Forwarded-Proto``. Off: plain http, as on localhost.
MOESCOPE_HTTPS = env.bool("MOESCOPE_HTTPS", default=False)
#: Proxies before this process; as many entries at the end of ``X-Forwarded-For`` are believed.
MOESCOPE_PROXIES = env.int("MOESCOPE_PROXIES", default=1 if MOESCOPE_HTTPS else 0)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if MOESCOPE_HTTPS else None
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = MOESCOPE_HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]  # asked from inside, where there is no proxy
SECURE_HSTS_SECONDS = env.int("MOESCOPE_HSTS_SECONDS", default=31_536_000) if MOESCOPE_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = MOESCOPE_HTTPS
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "webapp",
    "webapp.ui",
    "webapp.accounts",
    "webapp.traces",
    "webapp.experiments",
    "webapp.history",
    "webapp.api",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "template_partials",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "webapp.limits.BodyLimitMiddleware",  # before the next, which reads forms
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "webapp.accounts.middleware.SignInRequiredMiddleware",
    "webapp.accounts.middleware.RoleMiddleware",
]

ROOT_URLCONF = "webapp.urls"
WSGI_APPLICATION = "webapp.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["webapp.ui.templatetags.moescope"],
        },
    }
]

# Without an address there is no database at all, and a system check says what to do.
DATABASES = {}
if DATABASE_URL:
    _database = env.db_url_config(DATABASE_URL)
    # A server that vanished without closing its connections is given up after half a minute, not after hours.
    _patience = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4}
    _options = _patience | _database.get("OPTIONS", {})
    # Each thread keeps its connection. No pool: Celery closes it under the worker's other thread, and after an outage
    # it waits longer and longer between two tries.
    DATABASES["default"] = _database | {"CONN_MAX_AGE": 300, "CONN_HEALTH_CHECKS": True, "OPTIONS": _options}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"

#: How to send e-mail: ``smtp://user:password@host:587?tls=True`` or ``smtp+ssl://…``; empty: none is sent.
EMAIL_URL = env.str("EMAIL_URL", default="").strip()
if EMAIL_URL:
    globals().update(env.email_url_config(EMAIL_URL))
EMAIL_TIMEOUT = 10
#: Who is told that something became slower: e-mail addresses, and webhooks (``https://…``; ``slack+https://…`` for
#: Slack and its like), whose hosts must be listed.
MOESCOPE_ALERT_MAIL = env.list("MOESCOPE_ALERT_MAIL", default=[])
MOESCOPE_ALERT_WEBHOOKS = env.list("MOESCOPE_ALERT_WEBHOOKS", default=[])
MOESCOPE_ALERT_HOSTS = env.list("MOESCOPE_ALERT_HOSTS", default=[])
#: How browsers come here, for links in what is sent.
MOESCOPE_URL = env.str("MOESCOPE_URL", default="http://127.0.0.1:8000").rstrip("/")
DEFAULT_FROM_EMAIL = env.str("MOESCOPE_MAIL_FROM", default="moescope@localhost")

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATICFILES_FINDERS = [
    "webapp.ui.finders.VendorFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
]
STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "webapp" / "static_root"
# A source tree without `make setup` serves its files from where they lie.
WHITENOISE_USE_FINDERS = not STATIC_ROOT.exists()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["webapp.api.access.BearerToken"],
    "DEFAULT_PERMISSION_CLASSES": ["webapp.api.access.Allowed"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "webapp.api.negotiation.OneKind",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "webapp.api.problems.answer",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Moescope",
    "DESCRIPTION": "Queue experiments and read what came of them.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [],  # they would take the choices out of the experiment's own schema
    "SCHEMA_PATH_PREFIX": "/api/v1/",
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "[{asctime}] {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "django": {"handlers": [], "level": "WARNING"},  # not Django's own: it is silent where DEBUG is off
        "webapp": {"level": "INFO"},
    },
}

#: A larger request is refused (413) before it is read, but for files where `webapp.limits` lets them in.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000_000
#: Files never lie in memory. They go to the system's place for temporary files (``TMPDIR``), whatever their size.
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = False
