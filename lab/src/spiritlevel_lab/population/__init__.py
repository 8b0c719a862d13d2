"""Populations of trained networks: settings, runs, interventions, the store, executors."""
