"""Import the engine before doctests are collected: pytest would load its sources beside the compiled modules."""

import glmplan.serving.closed_loop
import glmplan.serving.pieces  # noqa: F401
