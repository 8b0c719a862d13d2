"""Questions asked of a network: measures, audits, comparisons, spectra, changes of its weights."""
