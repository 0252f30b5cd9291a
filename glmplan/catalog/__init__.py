"""What is published, as it was published: one door for each data folder, nothing computed."""
