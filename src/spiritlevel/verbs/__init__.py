"""Questions asked of a network: audits, comparisons, spectra, neurons, landscapes."""
