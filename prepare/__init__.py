"""What a claim needs on a node, as steps that can be planned, done, observed and undone (to come)."""
