"""The helper program that speaks CSI to vendor node plugins: frames in, gRPC out, no state that lasts."""
