"""Mixers, which replace attention in some layers of a hybrid: a convolution or a recurrence over
the text, as formulas.

Such a layer has no pattern. It reads the stream like attention, through the norm of its block. Its
output at a position depends on that position and on a state of fixed size from the positions
before:

    short convolution   b, c, h = x W_in;  z_t = c_t * Σ_j kernel_j (b h)_{t - width + 1 + j}
    gated delta rule    q, k, v = silu(convolved x W_in), q and k normed to length 1, q / √d_key
                        α = exp(-rate softplus(x W_decay + bias)),  β = sigmoid(x W_beta)
                        S_t = α_t S_{t-1} + k_t u_tᵀ,  u_t = β_t (v_t - (α_t S_{t-1})ᵀ k_t)
                        z_t = norm(S_tᵀ q_t) * silu(x W_gate)
    state space         v, k, q = silu(convolved x W_in + bias),  Δ = softplus(x W_step + bias)
                        S_t = exp(-rate Δ_t) S_{t-1} + k_t (Δ_t v_t)ᵀ
                        z_t = norm((S_tᵀ q_t + skip v_t) * silu(x W_gate))

It writes z W_out, as heads write z W_O; W_out is the `w_o` of its block, with a single writer. The
state of a short convolution is its window, the last width - 1 positions of b h. The state of the
two others is the window of the convolution for their queries, keys and values, and S, a matrix for
each head.

Sources: Liquid AI 2025 (LFM2, gated short convolutions); Yang, Kautz and Hatamizadeh 2024 (Gated
    Delta Networks); Dao and Gu 2024 (Mamba-2, whose B, C and x are the keys, queries and values
    here).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from probe.model.attention import inverse_rms

UNIT_EPSILON = 1e-6  # added to the squared length of a query or a key


class ShortConvolution(NamedTuple):
    """The weights of a gated short convolution.

    w_in: `d_model (3 d_model)`
    kernel: `d_model width`; the last entry is that of the position itself
    """

    w_in: Tensor
    kernel: Tensor


class GatedDeltaRule(NamedTuple):
    """The weights of a gated delta rule: a linear attention whose heads overwrite, in a matrix,
    the value of a key.

    w_in: `d_model channel`: the queries, then the keys of every key head, then the values of every
        head
    w_gate: `d_model (head d_value)`, the gate of the output
    w_beta: `d_model head`, how much is overwritten
    w_decay: `d_model head`, how much is kept, with `decay_bias, log_rate: head`
    kernel: `channel width`, of the convolution of the channels
    norm: `d_value`, the gain of the norm of the output, with its `epsilon`
    key_heads: consecutive heads share one of them
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
        """The length of queries and keys."""
        values = len(self.log_rate) * self.d_value
        return (len(self.kernel) - values) // 2 // self.key_heads

    @property
    def d_value(self) -> int:
        """The length of values."""
        return len(self.norm)


class StateSpace(NamedTuple):
    """The weights of a selective state space (Mamba-2): a linear attention whose matrices decay,
    and are added to, with a step that each position chooses.

    w_in: `d_model channel`: the values of every head, then the keys, then the queries of every key
        head
    w_gate: `d_model (head d_value)`, the gate of the output
    w_step, step_bias: `d_model head` and `head`, of the step
    kernel, kernel_bias: `channel width` and `channel`, of the convolution of the channels
    log_rate: `head`, how fast a head forgets
    skip: `head`, how much of a position's own value is added to its output
    norm: `(head d_value)`, the gain of the norm after the gate, computed over the heads that share
        one of the `key_heads`, with its `epsilon`
    """

    w_in: Tensor
    w_gate: Tensor
    w_step: Tensor
    kernel: Tensor
    kernel_bias: Tensor
    step_bias: Tensor
    log_rate: Tensor
    skip: Tensor
    norm: Tensor
    epsilon: float
    key_heads: int

    @property
    def d_key(self) -> int:
        """The length of queries and keys."""
        return (len(self.kernel) - len(self.norm)) // 2 // self.key_heads

    @property
    def d_value(self) -> int:
        """The length of values."""
        return len(self.norm) // len(self.log_rate)


class MatrixState(NamedTuple):
    """The state of a gated delta rule or a state space.

    window: `... width-1 channel`
    matrix: `... head d_key d_value`
    """

    window: Tensor
    matrix: Tensor


Mixer = ShortConvolution | GatedDeltaRule | StateSpace
State = Tensor | MatrixState


def convolve(x: Tensor, kernel: Tensor, window: Tensor) -> Tensor:
    """Every channel's last numbers, weighted by its kernel: Σ_j kernel_j x_{t - width + 1 + j}.
    `... pos channel, channel width -> ... pos channel`

    window: the positions before x, `... width-1 channel`; it may have fewer axes, which broadcast

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])  # pos channel
        >>> convolve(x, torch.tensor([[10.0, 1.0]]), torch.zeros(1, 1)).flatten()
        tensor([ 1., 12., 23.])
    """
    extended = _behind(window, x)
    n = x.shape[-2]
    taps = [extended[..., j : j + n, :] * kernel[:, j] for j in range(kernel.shape[-1])]
    return torch.stack(taps).sum(0)


def _behind(window: Tensor, x: Tensor) -> Tensor:
    """x with the window before it. `... width-1+pos channel`"""
    return torch.cat([window.expand(*x.shape[:-2], *window.shape[-2:]), x], dim=-2)


def _window_after(window: Tensor, x: Tensor) -> Tensor:
    """The window after x. `... width-1 channel`"""
    return _behind(window, x)[..., x.shape[-2] :, :]


class Updates(NamedTuple):
    """The update of a head's matrix at every position: it decays, changes its value under `k`,
    and is read with `q`.

    q, k: `... head pos d_key`
    v: `... head pos d_value`
    beta: `... head pos`; a gated delta rule moves the value toward `v` by this fraction. A state
        space has no `beta` and adds `v`
    log_decay: `... head pos`
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None
    log_decay: Tensor


class Decays(NamedTuple):
    """The remaining fractions at each position.

    remaining: of the first matrix, `... head pos`
    between: of the addition at one position, at another, `... head pos pos`
    """

    remaining: Tensor
    between: Tensor


def read_matrix(updates: Updates, matrix: Tensor) -> Tensor:
    """The output of every position from a matrix S that each position decays and adds to. `->
    ... head pos d_value`

        S = α S + k uᵀ,  o = Sᵀ q,  u = v, or for a gated delta rule u = β (v - (α S)ᵀ k)

    matrix: `... head d_key d_value`, the first matrix; it may have fewer axes, which broadcast

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2, 1)  # head pos d
        >>> v = torch.tensor([[[3.0], [5.0]]])
        >>> updates = Updates(one, one, v, torch.full((1, 2), 0.5), torch.zeros(1, 2))
        >>> read_matrix(updates, torch.zeros(1, 1, 1)).flatten()  # halfway to 3, from there to 5
        tensor([1.5000, 3.2500])
    """
    decays = _decays(updates.log_decay)
    weights = updates.q @ updates.k.mT * decays.between
    from_first = _under(decays.remaining, updates.q, matrix)
    return from_first + weights @ _added(updates, matrix, decays)


def matrix_behind(updates: Updates, matrix: Tensor) -> Tensor:
    """S after the last position. `... head d_key d_value`"""
    decays = _decays(updates.log_decay)
    # Summed, because there may be no position.
    until_end = decays.between[..., -1:, :].sum(-2)[..., None]
    added = (until_end * updates.k).mT @ _added(updates, matrix, decays)
    return updates.log_decay.sum(-1)[..., None, None].exp() * matrix + added


def _added(updates: Updates, matrix: Tensor, decays: Decays) -> Tensor:
    """u of every position. `... head pos d_value`

    In a state space u is v. In a gated delta rule, with D_ij the decay from position j to i, all u
    follow from one triangular system, so that no position waits for another:

        (1 + β (K Kᵀ * D) below the diagonal) U = β (V - D_i0 K S)
    """
    if updates.beta is None:
        return updates.v
    beta = updates.beta[..., None]
    system = (beta * (updates.k @ updates.k.mT) * decays.between).tril(-1)
    system = system + torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    right_side = beta * (updates.v - _under(decays.remaining, updates.k, matrix))
    return torch.linalg.solve_triangular(system, right_side, upper=False, unitriangular=True)


def _decays(log_decay: Tensor) -> Decays:
    """The remaining fractions, from the logarithms of a text's decays. `... head pos`

    The logarithms between two positions are summed separately. A difference of two sums from the
    start would lose small terms in float32: 1e-5 for a text of 300 tokens.
    """
    n = log_decay.shape[-1]
    later = log_decay[..., :, None].expand(*log_decay.shape, n).tril(-1)
    return Decays(log_decay.cumsum(-1).exp(), later.cumsum(-2).exp().tril())


def _under(remaining: Tensor, keys: Tensor, matrix: Tensor) -> Tensor:
    """The values under each key in the decayed first matrix. `... head pos d_value`"""
    # This product does not repeat the matrix for variants that share it.
    return torch.einsum("...nk,...kd->...nd", remaining[..., None] * keys, matrix)


def start(mixer: Mixer) -> State:
    """The state before a text: zeros. `width-1 channel`, and `head d_key d_value`"""
    channels, width = mixer.kernel.shape
    window = mixer.kernel.new_zeros(width - 1, channels)
    if isinstance(mixer, ShortConvolution):
        return window
    heads = len(mixer.log_rate)
    matrix = window.new_zeros(heads, mixer.d_key, mixer.d_value, dtype=torch.float32)
    return MatrixState(window, matrix)


def is_in_float32(mixer: Mixer) -> bool:
    """Whether the mixer is computed in float32 whatever the dtype of the model, as in its
    families' code.
    """
    return isinstance(mixer, GatedDeltaRule | StateSpace)


def mix(mixer: Mixer, x: Tensor, state: State | None = None) -> Tensor:
    """z at every position from the layer's input. `... pos d_model -> ... pos d_mixed`

    state: from the positions before; zeros by default. It may have fewer axes if variants share it

    Example:
        >>> import torch
        >>> mixer = ShortConvolution(torch.ones(1, 3), torch.tensor([[10.0, 1.0]]))
        >>> mix(mixer, torch.tensor([[1.0], [2.0], [3.0]])).flatten()  # b, c and h are x here
        tensor([  1.,  28., 147.])
        >>> state = state_behind(mixer, torch.tensor([[1.0], [2.0]]))
        >>> mix(mixer, torch.tensor([[3.0]]), state)  # the last position, from the state before it
        tensor([[147.]])
    """
    state = start(mixer) if state is None else state
    if isinstance(mixer, StateSpace):
        assert isinstance(state, MatrixState)
        updates, values = _steps(mixer, x @ mixer.w_in, x, state.window)
        read = read_matrix(updates, state.matrix) + mixer.skip[:, None, None] * values
        gate = silu((x @ mixer.w_gate).float())
        gated = read.transpose(-3, -2).flatten(-2).float() * gate  # ... pos (head d_value)
        by_group = gated.unflatten(-1, (mixer.key_heads, -1))
        normed = (by_group * inverse_rms(by_group, mixer.epsilon)).flatten(-2)
        return (normed * mixer.norm).to(x.dtype)
    if isinstance(mixer, GatedDeltaRule):
        assert isinstance(state, MatrixState)
        updates = _updates(mixer, x @ mixer.w_in, x, state.window)
        read = read_matrix(updates, state.matrix).transpose(-3, -2)  # ... pos head d_value
        single = read.to(x.dtype).float()
        normed = (single * inverse_rms(single, mixer.epsilon)).to(x.dtype) * mixer.norm
        gate = silu((x @ mixer.w_gate).float()).unflatten(-1, normed.shape[-2:])
        return (normed * gate).to(x.dtype).flatten(-2)
    assert isinstance(state, Tensor)
    b, c, h = (x @ mixer.w_in).chunk(3, dim=-1)
    return c * convolve(b * h, mixer.kernel, state)


def state_behind(mixer: Mixer, x: Tensor, state: State | None = None) -> State:
    """The state after the last position, from the layer's input at all positions.

    This is separate from `mix`, because most variants of a position are not continued, and a matrix
    for each would be the largest cost of their swaps.
    """
    state = start(mixer) if state is None else state
    if isinstance(mixer, GatedDeltaRule | StateSpace):
        assert isinstance(state, MatrixState)
        channels = x @ mixer.w_in
        if isinstance(mixer, StateSpace):
            updates, _ = _steps(mixer, channels, x, state.window)
        else:
            updates = _updates(mixer, channels, x, state.window)
        return MatrixState(
            _window_after(state.window, channels), matrix_behind(updates, state.matrix)
        )
    assert isinstance(state, Tensor)
    b, _, h = (x @ mixer.w_in).chunk(3, dim=-1)
    return _window_after(state, b * h)


def _updates(mixer: GatedDeltaRule, channels: Tensor, x: Tensor, window: Tensor) -> Updates:
    """The updates of a gated delta rule, from its channels and its input. In float32, as in its
    families' code.
    """
    heads = len(mixer.log_rate)
    convolved = silu(convolve(channels, mixer.kernel, window)).float()
    of_keys = mixer.key_heads * mixer.d_key
    q, k, v = convolved.split([of_keys, of_keys, heads * len(mixer.norm)], dim=-1)
    q, k = (
        _unit(_by_head(part, mixer.key_heads)).repeat_interleave(heads // mixer.key_heads, dim=-3)
        for part in (q, k)
    )
    beta = (x @ mixer.w_beta).sigmoid().float()  # ... pos head
    rate = mixer.log_rate.float().exp()
    log_decay = -rate * softplus((x @ mixer.w_decay).float() + mixer.decay_bias)
    return Updates(q / mixer.d_key**0.5, k, _by_head(v, heads), beta.mT, log_decay.float().mT)


def _steps(
    mixer: StateSpace, channels: Tensor, x: Tensor, window: Tensor
) -> tuple[Updates, Tensor]:
    """The updates of a state space, whose values are multiplied by their steps; and the
    unchanged values, `... head pos d_value`.
    """
    heads = len(mixer.log_rate)
    convolved = silu(convolve(channels, mixer.kernel, window) + mixer.kernel_bias).float()
    of_keys = mixer.key_heads * mixer.d_key
    values, keys, queries = convolved.split([len(mixer.norm), of_keys, of_keys], dim=-1)
    k, q = (
        _by_head(part, mixer.key_heads).repeat_interleave(heads // mixer.key_heads, dim=-3)
        for part in (keys, queries)
    )
    v = _by_head(values, heads)
    step = softplus(x @ mixer.w_step + mixer.step_bias).float().mT  # ... head pos
    rate = mixer.log_rate.float().exp()
    return Updates(q, k, step[..., None] * v, None, -rate[:, None] * step), v


def _by_head(x: Tensor, heads: int) -> Tensor:
    """`... pos (head d) -> ... head pos d`"""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _unit(x: Tensor) -> Tensor:
    """Vectors normed to length 1. `... d`, unchanged"""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPSILON)
