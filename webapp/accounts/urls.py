from django.contrib.auth.views import LogoutView
from django.urls import include, path

from webapp.accounts import reset, team, token_views, views
from webapp.accounts.models import Role
from webapp.accounts.roles import needs

_team = [
    path("", team.team, name="list"),
    path("invite/", team.invite, name="invite"),
    path("<int:pk>/role/", team.change_role, name="role"),
    path("<int:pk>/link/", team.new_link, name="link"),
    path("<int:pk>/shut-out/", team.shut_out, name="shut-out"),
    path("<int:pk>/take-back/", team.take_back, name="take-back"),
    path("deeds/", team.deeds, name="deeds"),
]

_tokens = [
    path("", token_views.tokens, name="list"),
    path("<int:pk>/revoke/", token_views.revoke, name="revoke"),
]

urlpatterns = [
    path("sign-in/", views.SignIn.as_view(), name="sign-in"),
    path("sign-in/<str:token>/", views.sign_in_link, name="sign-in-link"),
    path("sign-out/", needs(Role.VIEWER)(LogoutView.as_view()), name="sign-out"),
    path("password/", needs(Role.VIEWER)(views.Password.as_view()), name="password"),
    path("password/forgotten/", reset.Forgotten.as_view(), name="forgotten"),
    path("password/forgotten/<uidb64>/<token>/", reset.Chosen.as_view(), name="choose-password"),
    path("team/", include((_team, "team"))),
    path("tokens/", include((_tokens, "tokens"))),
]
