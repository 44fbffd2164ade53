"""The door for the web server. It stays shut where a key is missing that `manage.py check --deploy` would ask for."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.wsgi import get_wsgi_application

from webapp import checks

application = get_wsgi_application()
checks.refuse_to_serve_badly()
