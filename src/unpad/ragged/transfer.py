"""Moving, converting and copying a batch: what a tensor's methods of the same names do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from unpad.ragged.core import Core

if TYPE_CHECKING:
    from typing_extensions import Self


class Transfer(Core):
    """The part of `Ragged` that moves values; offsets stay on the CPU."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert the values as `Tensor.to` does; the offsets stay on the CPU.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(2), [0, 2]).to(torch.float64).dtype
        torch.float64
        """
        return self._trusted(self.values.to(*args, **kwargs), self.offsets)

    def cpu(self) -> Self:
        """Move the values to the CPU.

        No copy where they are there already. Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).cpu().device
        device(type='cpu')
        """
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """Move the values to a CUDA device.

        The offsets stay on the CPU. Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).cuda().device  # doctest: +SKIP
        device(type='cuda', index=0)
        """
        return self._trusted(self.values.cuda(device), self.offsets)

    def double(self) -> Self:
        """Convert the values to float64.

        Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).double().dtype
        torch.float64
        """
        return self.to(torch.float64)

    def float(self) -> Self:
        """Convert the values to float32.

        Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).float().dtype
        torch.float32
        """
        return self.to(torch.float32)

    def half(self) -> Self:
        """Convert the values to float16.

        Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).half().dtype
        torch.float16
        """
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """Convert the values to bfloat16.

        Gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).bfloat16().dtype
        torch.bfloat16
        """
        return self.to(torch.bfloat16)

    def long(self) -> Self:
        """Convert the values to int64.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).long().dtype
        torch.int64
        """
        return self.to(torch.int64)

    def detach(self) -> Self:
        """Return the same values cut off from their gradient history; no copy.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.zeros(2, requires_grad=True), [0, 2])
        >>> ragged.detach().requires_grad
        False
        """
        return self._trusted(self.values.detach(), self.offsets)

    def clone(self) -> Self:
        """Copy the values; gradients flow to the original.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.zeros(2), [0, 2])
        >>> ragged.clone().values.data_ptr() == ragged.values.data_ptr()
        False
        """
        return self._trusted(self.values.clone(), self.offsets.clone())

    def contiguous(self) -> Self:
        """Return the batch with contiguous values; no copy where they are already.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.zeros(4, 3).T, [0, 1, 3])
        >>> ragged.contiguous().values.is_contiguous()
        True
        """
        return self._trusted(self.values.contiguous(), self.offsets)

    def pin_memory(self) -> Self:
        """Copy the values into page-locked memory, as a DataLoader with `pin_memory=True` does.

        Raises RuntimeError without an accelerator, as in torch.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(2), [0, 2]).pin_memory().is_pinned()  # doctest: +SKIP
        True
        """
        return self._trusted(self.values.pin_memory(), self.offsets)

    def is_pinned(self) -> bool:
        """Say whether the values lie in page-locked memory.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).is_pinned()
        False
        """
        return self.values.is_pinned()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Make the values require a gradient, in place, and return this batch.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).requires_grad_().requires_grad
        True
        """
        self.values.requires_grad_(requires_grad)
        return self
