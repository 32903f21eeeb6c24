"""The frozen types and enums that pass between two stages.

Quantities are in base units: seconds as ``float``, integer nanoseconds if a name ends in ``_ns``.
"""
