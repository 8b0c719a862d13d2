"""The store of a study: one database, resumable, exportable."""
