"""Requests and answers from one dialect to another; Responses is the shape in the middle.

``bridge`` joins the four converters ``<dialect>_to_<dialect>``, once ``preparation`` has checked what the client sent
(``schema``, ``sanitising``, ``namespaces``). What begins with ``chat_`` or ``messages_`` serves that dialect's two
converters: ``_input`` reads its conversation as Responses items, ``_turns`` writes it from them.
"""
