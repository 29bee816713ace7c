"""Golden cases drawn at random and computed by TensorFlow: see make_golden.py."""
