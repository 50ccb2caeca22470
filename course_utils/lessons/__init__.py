"""What belongs to one lesson each: the checks of its exercises, its drawings and its entry in the ledger."""
