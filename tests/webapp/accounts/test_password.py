import pytest
from django.contrib.auth import get_user

pytestmark = pytest.mark.django_db

NEW = "a horse of another colour"


def test_who_came_by_a_link_sets_a_first_password(signed_in, member):
    member.set_unusable_password()
    member.save()
    signed_in.force_login(member)
    page = signed_in.get("/password/").text
    assert "Set a password" in page
    assert "old_password" not in page

    response = signed_in.post("/password/", {"new_password1": NEW, "new_password2": NEW}, follow=True)

    assert "Your password is set." in response.text
    member.refresh_from_db()
    assert member.check_password(NEW)
    assert get_user(signed_in) == member  # still signed in


def test_a_password_is_changed_only_with_the_old_one(signed_in, member):
    answers = {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW}
    assert "Your old password was entered incorrectly" in signed_in.post("/password/", answers).text
    signed_in.post("/password/", answers | {"old_password": "correct horse battery"})
    member.refresh_from_db()
    assert member.check_password(NEW)


@pytest.mark.parametrize(
    ("password", "sentence"),
    [("short1", "This password is too short. It must contain at least 10 characters."),
     ("password1234", "This password is too common."),
     ("4815162342108", "This password is entirely numeric.")],
)  # fmt: skip
def test_a_weak_password_is_refused_beside_the_field(signed_in, password, sentence):
    answers = {"old_password": "correct horse battery", "new_password1": password, "new_password2": password}
    assert sentence in signed_in.post("/password/", answers).text
