"""Connectionist temporal classification: the loss and the decoders, on ragged logits and labels."""

from unpad.ctc.alignment import ctc_unalignable
from unpad.ctc.beam import ctc_beam_decode
from unpad.ctc.greedy import ctc_greedy_decode
from unpad.ctc.loss import ctc_loss

__all__ = ["ctc_beam_decode", "ctc_greedy_decode", "ctc_loss", "ctc_unalignable"]
