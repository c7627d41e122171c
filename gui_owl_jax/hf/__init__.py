"""Exchange with the Hugging Face format."""
