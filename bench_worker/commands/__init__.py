"""The commands of ``python -m bench_worker``, one module for each kind."""
