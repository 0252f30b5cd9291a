"""The service: the questions of `glmplan` over HTTP, and the page at `/`. Needs the extra `serve`."""
