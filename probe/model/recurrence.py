"""What mixes positions in a layer that has no attention: a convolution or a recurrence that runs
over the text, as formulas.

Such a layer has no heads and no pattern. It reads the stream like attention does, through the norm
of its block, and what it makes at a position depends on that position and on a state of fixed size
that the positions before it left behind:

    short convolution   b, c, h = x W_in;  z_t = c_t * Σ_j kernel_j (b h)_{t - width + 1 + j}

It writes z W_out, as heads write z W_O; W_out is the `w_o` of its block, of one writer. The state
of a short convolution is its window, the last width - 1 of b h.

Source: Liquid AI 2025 (LFM2, gated short convolutions).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ShortConvolution(NamedTuple):
    """The weights of a gated short convolution. `w_in: d_model (3 d_model)`, `kernel: d_model
    width`, the last of its numbers that of the position itself."""

    w_in: Tensor
    kernel: Tensor


def convolve(x: Tensor, kernel: Tensor, window: Tensor) -> Tensor:
    """Every channel's last numbers, weighted by its kernel: Σ_j kernel_j x_{t - width + 1 + j}.

    `... pos channel, channel width`; `window`: what stands in front of x, `... width-1 channel`, or
    as few axes as broadcast `-> ... pos channel`

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])  # pos channel
        >>> convolve(x, torch.tensor([[10.0, 1.0]]), torch.zeros(1, 1)).flatten()
        tensor([ 1., 12., 23.])
    """
    whole = _behind(window, x)
    n = x.shape[-2]
    taps = [whole[..., j : j + n, :] * kernel[:, j] for j in range(kernel.shape[-1])]
    return torch.stack(taps).sum(0)


def _behind(window: Tensor, x: Tensor) -> Tensor:
    """x with the window in front. `... width-1+pos channel`"""
    return torch.cat([window.expand(*x.shape[:-2], *window.shape[-2:]), x], dim=-2)


def start(mixer: ShortConvolution) -> Tensor:
    """The state in front of a text: a window of zeros. `width-1 channel`"""
    channels, width = mixer.kernel.shape
    return mixer.kernel.new_zeros(width - 1, channels)


def mix(mixer: ShortConvolution, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """z at every position from what the layer reads there, and the state behind the last one.

    `... pos d_model`; `state`: what the positions before left behind, those of a text's beginning
    by default; of fewer axes where variants share it `-> ... pos d_model, ... width-1 d_model`

    Example:
        >>> import torch
        >>> mixer = ShortConvolution(torch.ones(1, 3), torch.tensor([[10.0, 1.0]]))
        >>> whole, _ = mix(mixer, torch.tensor([[1.0], [2.0], [3.0]]))  # b, c and h are x here
        >>> whole.flatten()
        tensor([ 1., 28., 147.])
        >>> _, state = mix(mixer, torch.tensor([[1.0], [2.0]]))
        >>> mix(mixer, torch.tensor([[3.0]]), state)[0]  # the last position, from what was left
        tensor([[147.]])
    """
    window = start(mixer) if state is None else state
    b, c, h = (x @ mixer.w_in).chunk(3, dim=-1)
    gated = b * h
    z = c * convolve(gated, mixer.kernel, window)
    return z, _behind(window, gated)[..., gated.shape[-2] :, :]
