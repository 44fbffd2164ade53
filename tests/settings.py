"""Settings of the test run: the product's own, away from any running product and its data.

The servers are real and start with the first test that needs one (see ``conftest.py``), which then fills in
their addresses.
"""

import atexit
import os
import shutil
import tempfile

from tests import variables

for _name in variables.of_settings():
    os.environ.pop(_name, None)
_data = tempfile.mkdtemp(prefix="moescope-test-")
atexit.register(shutil.rmtree, _data, ignore_errors=True)
os.environ["MOESCOPE_DATA"] = _data
os.environ["DATABASE_URL"] = "postgresql://moescope@/moescope"
# Playwright's synchronous API runs an event loop in the test's thread, where Django else refuses the ORM.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

from webapp.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = False
