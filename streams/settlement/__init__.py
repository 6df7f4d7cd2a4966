"""Settlement: accepted ends of replies to stored replies and usage records."""
