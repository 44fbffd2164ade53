"""Measures Mixture-of-Experts layers stage by stage: experiment JSON in, result JSON out.

Importing this package, and every module that the web uses (``spec``, ``result``, ``models``, ``capacity``,
``workload.requests``, ``workload.schedule``, ``serving``, ``stats``), never imports torch.
"""
