"""Volumes of CSI plugins as steps of a claim: paths, what may be done when, the helper's client."""
