"""The learner's command line: check, record, report and compare."""
