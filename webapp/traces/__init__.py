"""Imported request traces, each kept once under a name."""
