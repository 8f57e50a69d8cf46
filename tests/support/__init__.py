"""Modules that the Python tests share. The C files of this folder are the fixtures of the C
tests."""
