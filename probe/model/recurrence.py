"""What mixes positions in a layer that has no attention: a convolution or a recurrence that runs
over the text, as formulas.

Such a layer has no pattern. It reads the stream like attention does, through the norm of its
block, and what it makes at a position depends on that position and on a state of fixed size that
the positions before it left behind:

    short convolution   b, c, h = x W_in;  z_t = c_t * Σ_j kernel_j (b h)_{t - width + 1 + j}
    gated delta rule    S_t = α_t S_{t-1} + k_t u_tᵀ,  u_t = β_t (v_t - (α_t S_{t-1})ᵀ k_t)
                        z_t = norm(S_tᵀ q_t) * silu(x W_gate)

It writes z W_out, as heads write z W_O; W_out is the `w_o` of its block, of one writer. The state
of a short convolution is its window, the last width - 1 of b h; that of a gated delta rule the
window of the convolution that its queries, keys and values come from, and S, a matrix a head.

Sources: Liquid AI 2025 (LFM2, gated short convolutions); Yang, Kautz and Hatamizadeh 2024 (Gated
Delta Networks).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from probe.model.attention import inverse_rms

UNIT_EPSILON = 1e-6  # what is added to the square of a query's or a key's length


class ShortConvolution(NamedTuple):
    """The weights of a gated short convolution. `w_in: d_model (3 d_model)`, `kernel: d_model
    width`, the last of its numbers that of the position itself."""

    w_in: Tensor
    kernel: Tensor


class GatedDeltaRule(NamedTuple):
    """The weights of a gated delta rule: a linear attention whose heads overwrite, in a matrix,
    what they hold under a key.

    `w_in: d_model channel`, the queries, then the keys of every key head, then the values of every
    head, which `kernel: channel width` convolves; `w_gate: d_model (head d_value)` is the gate of
    what is read, `w_beta w_decay: d_model head` say how much is overwritten and how much is kept,
    with `decay_bias log_rate: head`; `norm: d_value` is the gain of the norm of what is read, with
    its `epsilon`. Heads that follow each other share one of the `key_heads`.
    """

    w_in: Tensor
    w_gate: Tensor
    w_beta: Tensor
    w_decay: Tensor
    kernel: Tensor
    decay_bias: Tensor
    log_rate: Tensor
    norm: Tensor
    epsilon: float
    key_heads: int

    @property
    def d_key(self) -> int:
        """How long a query and a key are."""
        values = len(self.log_rate) * len(self.norm)
        return (len(self.kernel) - values) // 2 // self.key_heads


class DeltaState(NamedTuple):
    """What a gated delta rule keeps of a text: `window: ... width-1 channel`, `matrix: ... head
    d_key d_value`."""

    window: Tensor
    matrix: Tensor


Mixer = ShortConvolution | GatedDeltaRule
State = Tensor | DeltaState


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


def _left(window: Tensor, x: Tensor) -> Tensor:
    """The window behind x. `... width-1 channel`"""
    return _behind(window, x)[..., x.shape[-2] :, :]


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, matrix: Tensor
) -> tuple[Tensor, Tensor]:
    """What every position reads of a matrix S that each position in turn lets decay and corrects:
    S = α S + k uᵀ, u = β (v - (α S)ᵀ k), o = Sᵀ q; and S behind the last one.

    `twice ... head pos d_key, ... head pos d_value, twice ... head pos`; `matrix: ... head d_key
    d_value`, of as few axes as broadcast `-> ... head pos d_value, ... head d_key d_value`

    With D_ij the decay from position j to i, what all positions add follows from one triangular
    system, (1 + β (K Kᵀ * D) below the diagonal) U = β (V - D_i0 K S); no step waits for another.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2, 1)  # head pos d
        >>> v = torch.tensor([[[3.0], [5.0]]])
        >>> half, kept = torch.full((1, 2), 0.5), torch.zeros(1, 2)
        >>> read, matrix = delta_rule(one, one, v, half, kept, torch.zeros(1, 1, 1))
        >>> read.flatten(), matrix.item()  # halfway from 0 to 3, and from there to 5
        (tensor([1.5000, 3.2500]), 3.25)
    """
    since_start = log_decay.cumsum(-1)  # log of what is left of the matrix at each position
    between = (since_start[..., :, None] - since_start[..., None, :]).tril().exp().tril()
    system = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    system = system + torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
    kept = since_start.exp()[..., None]
    # A product that leaves the matrix as it is where variants share it.
    held = torch.einsum("...nk,...kd->...nd", kept * k, matrix)
    added = torch.linalg.solve_triangular(
        system, beta[..., None] * (v - held), upper=False, unitriangular=True
    )
    read = torch.einsum("...nk,...kd->...nd", kept * q, matrix) + ((q @ k.mT) * between) @ added
    total = log_decay.sum(-1, keepdim=True)
    until_end = (total - since_start).exp()[..., None]
    return read, total.exp()[..., None] * matrix + (until_end * k).mT @ added


def start(mixer: Mixer) -> State:
    """The state in front of a text: zeros. `width-1 channel`, and `head d_key d_value`"""
    channels, width = mixer.kernel.shape
    window = mixer.kernel.new_zeros(width - 1, channels)
    if isinstance(mixer, ShortConvolution):
        return window
    heads = len(mixer.log_rate)
    matrix = window.new_zeros(heads, mixer.d_key, len(mixer.norm), dtype=torch.float32)
    return DeltaState(window, matrix)


def is_in_float32(mixer: Mixer) -> bool:
    """Whether its families' own code computes it in float32 whatever the type of the model. Here it
    is, too."""
    return isinstance(mixer, GatedDeltaRule)


def mix(mixer: Mixer, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """z at every position from what the layer reads there, and the state behind the last one.

    `... pos d_model`; `state`: what the positions before left behind, those of a text's beginning
    by default; of fewer axes where variants share it `-> ... pos d_mixed`, the state

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
    state = start(mixer) if state is None else state
    if isinstance(mixer, GatedDeltaRule):
        assert isinstance(state, DeltaState)
        return _mix_by_delta_rule(mixer, x, state)
    assert isinstance(state, Tensor)
    return _mix_by_convolution(mixer, x, state)


def _mix_by_convolution(
    mixer: ShortConvolution, x: Tensor, window: Tensor
) -> tuple[Tensor, Tensor]:
    b, c, h = (x @ mixer.w_in).chunk(3, dim=-1)
    gated = b * h
    return c * convolve(gated, mixer.kernel, window), _left(window, gated)


def _mix_by_delta_rule(
    mixer: GatedDeltaRule, x: Tensor, state: DeltaState
) -> tuple[Tensor, DeltaState]:
    heads, d_value = len(mixer.log_rate), len(mixer.norm)
    channels = x @ mixer.w_in
    convolved = silu(convolve(channels, mixer.kernel, state.window)).float()
    of_keys = mixer.key_heads * mixer.d_key
    joined = convolved.split([of_keys, of_keys, heads * d_value], dim=-1)
    group = heads // mixer.key_heads
    q, k = (
        _unit(_by_head(part, mixer.key_heads)).repeat_interleave(group, dim=-3)
        for part in joined[:2]
    )  # ... head pos d_key
    v = _by_head(joined[2], heads)
    beta = (x @ mixer.w_beta).sigmoid().float().mT  # ... head pos
    rate = mixer.log_rate.float().exp()
    log_decay = -rate * softplus((x @ mixer.w_decay).float() + mixer.decay_bias)
    read, matrix = delta_rule(q / mixer.d_key**0.5, k, v, beta, log_decay.float().mT, state.matrix)
    read = read.transpose(-3, -2).to(x.dtype).float()  # ... pos head d_value
    normed = (read * inverse_rms(read, mixer.epsilon)).to(x.dtype) * mixer.norm
    gate = silu((x @ mixer.w_gate).float()).unflatten(-1, (heads, -1))
    z = (normed * gate).to(x.dtype).flatten(-2)
    return z, DeltaState(_left(state.window, channels), matrix)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """`... pos (head d) -> ... head pos d`"""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _unit(x: Tensor) -> Tensor:
    """Vectors made one long. `... d`, unchanged"""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPSILON)
