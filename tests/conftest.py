"""Programs that tests start are no tests: they would fail where they are imported alone."""

collect_ignore = ["rank_programs"]
