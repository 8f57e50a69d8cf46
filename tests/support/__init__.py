"""Modules that the Python tests share. The C files of this folder are shared by the tests in C."""
