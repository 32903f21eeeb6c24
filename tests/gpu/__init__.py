"""Tests of the figures of a GPU: on a CUDA device (`pytest -m gpu`), and on the virtual one where that can be done."""
