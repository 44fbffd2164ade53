"""Experts spread over ranks: where each lives, what travels between them, and how long that takes."""
