"""Each module measures some goals together: `GOALS` names them, `run(options)` yields cells and results."""
