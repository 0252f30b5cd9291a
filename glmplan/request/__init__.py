"""Options of a request: each is declared here once, and each way to ask derives from it."""
