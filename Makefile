# Every verb lives in make.py, which needs only Python. On Windows: py make.py lab
PYTHON ?= python3
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup lab test book record refresh check report compare trace snapshot demo slides wheel lint workspace counts renumber

help:
	@$(PYTHON) make.py

setup lab test book record refresh check report compare trace snapshot demo slides wheel lint workspace counts renumber:
	@$(PYTHON) make.py $@ $(ARGS)
