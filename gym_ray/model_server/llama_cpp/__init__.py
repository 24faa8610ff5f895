"""The embedded engine: a real model on this machine, served by llama.cpp, without key and without GPU."""
