"""Duration classes of histograms. Imports no torch: graph servers count in them."""

REQUEST_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""Upper bounds, in seconds, of the duration classes of requests; a last class has none."""
