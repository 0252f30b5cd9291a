"""What can be asked: every option of a request is declared here once, and each way to ask derives from it."""
