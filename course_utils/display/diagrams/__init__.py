"""Drawings of mechanisms: what happens, without any measured number. One module for each lesson."""
