"""What stands behind make.py: the environment, the learner's workspace and the verbs. Standard library only."""
