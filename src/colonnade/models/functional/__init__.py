"""Differentially private function-on-function regression across parties."""
