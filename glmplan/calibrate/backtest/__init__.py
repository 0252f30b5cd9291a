"""Was the model right: errors on runs that a fit has not seen, and what moved between two fits."""
