"""Turns: messages and cancellations folded into conversations, contexts and admissions."""
