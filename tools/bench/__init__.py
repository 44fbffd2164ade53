"""The figures that the docs quote, measured on this machine: ``make bench``. One module a section.

Everything is compared within one run, interleaved, as a ratio.
"""
