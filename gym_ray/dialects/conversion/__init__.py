"""Requests and answers from one dialect to another; Responses is the shape in the middle."""
