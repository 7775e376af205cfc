"""Rollouts: a new version beside the stable one, compared with it, promoted or rolled back."""
