"""What a template asks about a member."""

from django import template

from webapp.accounts import roles
from webapp.accounts.models import User

register = template.Library()


@register.filter
def may_change(user: User, author_id: int | None) -> bool:
    return roles.may_change(user, author_id)
