"""The contracts: records, tensors, model configuration, errors. Imports nothing of ours."""
