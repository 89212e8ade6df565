"""Which of the kernel's classes (/sys/class) are whose."""

ACCELERATORS = ("accel", "habanalabs", "neuron_device", "ve", "mic")
"""Where drivers of accelerators make device files; those of graphics cards make theirs in `drm`."""
