"""The language of the log: events, topics, envelope, codec, identities and the fold of a reply.

Imports nothing else of Turnlog.
"""
