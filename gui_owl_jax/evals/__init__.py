"""Success, grounding and reports."""
