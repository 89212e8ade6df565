"""The commands of `xce-reporter`: reporters that run off the nodes, and hosts that are not there."""
