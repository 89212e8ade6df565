"""Benchmarks: the product against a floor taken in the same run. `./dev bench` runs them."""
