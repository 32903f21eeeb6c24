"""Every frozen type and enum that crosses a wall between two stages.

Quantities are in base units: seconds as ``float``, integer nanoseconds where a name ends in ``_ns``.
"""
