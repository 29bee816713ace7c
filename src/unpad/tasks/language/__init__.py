"""Language models: recurrent layers that tell the next token of a text."""
