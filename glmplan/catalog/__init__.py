"""Published facts as published: one reader for each data folder, nothing computed."""
