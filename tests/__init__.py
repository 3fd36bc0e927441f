"""Tests mirror the folders they test."""
