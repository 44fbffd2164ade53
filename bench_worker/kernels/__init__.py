"""Kernels of a MoE layer: packing rows, the expert GEMMs (one file a backend), attention."""
