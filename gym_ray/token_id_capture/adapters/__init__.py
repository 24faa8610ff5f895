"""What each inference engine says about its tokens, read and checked; nothing here speaks HTTP."""
