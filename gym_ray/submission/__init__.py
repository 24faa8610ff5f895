"""Evaluations that are submitted: what a document asks for, the files of a job, and what runs in the job (D131-D136).

Nothing here knows Ray. A document is read and planned where it is submitted; the driver runs where the job lands, and
the two share a directory and nothing else.
"""
