"""The places a model can run, one package each, and the contract they keep."""
