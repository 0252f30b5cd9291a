"""Import the engine before doctests are collected: pytest would load its sources beside the compiled modules."""

import glmplan.simulation.closed_loop
import glmplan.simulation.simulate  # noqa: F401
