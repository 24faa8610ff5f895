"""How the files of a token directory are written, read and kept in order; ``token_id_capture.store`` is the door to it."""
