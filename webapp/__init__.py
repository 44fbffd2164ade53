"""Stores, queues, compares and shows measurements. Never imports torch."""
