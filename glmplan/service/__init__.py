"""HTTP service: questions of `glmplan` and the page at `/`; extra `serve`."""
