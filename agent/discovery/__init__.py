"""The agent's side of discovery: runs the probe, keeps what was once found, and says what should be there."""
