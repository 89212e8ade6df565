"""The helper program that speaks CSI to vendor node plugins (to come)."""
