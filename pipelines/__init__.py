"""Graphs of stages. Empty until pipelines are built: one model per topic today."""
