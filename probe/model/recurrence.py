"""What mixes positions in a layer that has no attention: a convolution or a recurrence that runs
over the text, as formulas.

Such a layer has no pattern. It reads the stream like attention does, through the norm of its
block, and what it makes at a position depends on that position and on a state of fixed size that
the positions before it left behind:

    short convolution   b, c, h = x W_in;  z_t = c_t * Σ_j kernel_j (b h)_{t - width + 1 + j}
    gated delta rule    q, k, v = silu(convolved x W_in), q and k made one long, q / √d_key
                        α = exp(-rate softplus(x W_decay + bias)),  β = sigmoid(x W_beta)
                        S_t = α_t S_{t-1} + k_t u_tᵀ,  u_t = β_t (v_t - (α_t S_{t-1})ᵀ k_t)
                        z_t = norm(S_tᵀ q_t) * silu(x W_gate)
    state space         v, k, q = silu(convolved x W_in + bias),  Δ = softplus(x W_step + bias)
                        S_t = exp(-rate Δ_t) S_{t-1} + k_t (Δ_t v_t)ᵀ
                        z_t = norm((S_tᵀ q_t + skip v_t) * silu(x W_gate))

It writes z W_out, as heads write z W_O; W_out is the `w_o` of its block, of one writer. The state
of a short convolution is its window, the last width - 1 of b h; that of the two others the window
of the convolution that their queries, keys and values come from, and S, a matrix a head.

Sources: Liquid AI 2025 (LFM2, gated short convolutions); Yang, Kautz and Hatamizadeh 2024 (Gated
Delta Networks); Dao and Gu 2024 (Mamba-2, whose B, C and x are the keys, queries and values here).
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
        values = len(self.log_rate) * self.d_value
        return (len(self.kernel) - values) // 2 // self.key_heads

    @property
    def d_value(self) -> int:
        """How long a value is."""
        return len(self.norm)


class StateSpace(NamedTuple):
    """The weights of a selective state space (Mamba-2): a linear attention whose heads let decay
    what they hold, and add to it, by a step that each position chooses.

    `w_in: d_model channel`, the values of every head, then the keys, then the queries of every key
    head, which `kernel: channel width` and `kernel_bias: channel` convolve; `w_gate: d_model (head
    d_value)` is the gate of what is read; `w_step: d_model head` and `step_bias: head` are the
    step, `log_rate: head` how fast a head forgets, `skip: head` how much of its own value a
    position adds to what it reads; `norm: (head d_value)` is the gain of the norm behind the gate,
    taken over the heads that share one of the `key_heads`, with its `epsilon`.
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
        """How long a query and a key are."""
        return (len(self.kernel) - len(self.norm)) // 2 // self.key_heads

    @property
    def d_value(self) -> int:
        """How long a value is."""
        return len(self.norm) // len(self.log_rate)


class MatrixState(NamedTuple):
    """What a gated delta rule or a state space keeps of a text: `window: ... width-1 channel`,
    `matrix: ... head d_key d_value`."""

    window: Tensor
    matrix: Tensor


Mixer = ShortConvolution | GatedDeltaRule | StateSpace
State = Tensor | MatrixState


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


class Updates(NamedTuple):
    """What every position of a text does to the matrix of a head: lets it decay, changes what it
    holds under `k`, and reads with `q`.

    A gated delta rule corrects what is held toward `v`, by `beta` of the way; a state space, which
    has no `beta`, adds `v`. `q k: ... head pos d_key`, `v: ... head pos d_value`, `beta log_decay:
    ... head pos`
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None
    log_decay: Tensor


class Decays(NamedTuple):
    """How much of the first matrix is `left` at each position, `... head pos`, and how much
    `between` two: of what was added at one is left at another, `... head pos pos`."""

    left: Tensor
    between: Tensor


def read_matrix(updates: Updates, matrix: Tensor) -> Tensor:
    """What every position reads of a matrix S that each in turn lets decay and adds to: S = α S +
    k uᵀ, o = Sᵀ q, where u is v, or what corrects S: β (v - (α S)ᵀ k).

    `matrix: ... head d_key d_value`, what stood there before, of as few axes as broadcast `-> ...
    head pos d_value`

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2, 1)  # head pos d
        >>> v = torch.tensor([[[3.0], [5.0]]])
        >>> updates = Updates(one, one, v, torch.full((1, 2), 0.5), torch.zeros(1, 2))
        >>> read_matrix(updates, torch.zeros(1, 1, 1)).flatten()  # halfway to 3, from there to 5
        tensor([1.5000, 3.2500])
    """
    decays = _decays(updates.log_decay)
    of_others = updates.q @ updates.k.mT * decays.between
    held = _under(decays.left, updates.q, matrix)
    return held + of_others @ _added(updates, matrix, decays)


def matrix_behind(updates: Updates, matrix: Tensor) -> Tensor:
    """S behind the last position. `... head d_key d_value`"""
    decays = _decays(updates.log_decay)
    # a sum, for there may be no position
    until_end = decays.between[..., -1:, :].sum(-2)[..., None]
    added = (until_end * updates.k).mT @ _added(updates, matrix, decays)
    return updates.log_decay.sum(-1)[..., None, None].exp() * matrix + added


def _added(updates: Updates, matrix: Tensor, decays: Decays) -> Tensor:
    """u of every position. `... head pos d_value`

    That is v, or what corrects: with D_ij the decay from position j to i, all follow from one
    triangular system, (1 + β (K Kᵀ * D) below the diagonal) U = β (V - D_i0 K S); no position
    waits for another.
    """
    if updates.beta is None:
        return updates.v
    beta = updates.beta[..., None]
    system = (beta * (updates.k @ updates.k.mT) * decays.between).tril(-1)
    system = system + torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    wanted = beta * (updates.v - _under(decays.left, updates.k, matrix))
    return torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)


def _decays(log_decay: Tensor) -> Decays:
    """What is left behind the decays of a text, whose logs are given. `... head pos`

    The logs between two positions are summed for themselves: a difference of two sums from the
    start would lose, in float32, what is small beside them, and a text of 300 tokens 1e-5.
    """
    n = log_decay.shape[-1]
    later = log_decay[..., :, None].expand(*log_decay.shape, n).tril(-1)
    return Decays(log_decay.cumsum(-1).exp(), later.cumsum(-2).exp().tril())


def _under(left: Tensor, keys: Tensor, matrix: Tensor) -> Tensor:
    """What the decayed first matrix holds under each key. `... head pos d_value`"""
    # A sum that does not repeat the matrix for variants that share it.
    return torch.einsum("...nk,...kd->...nd", left[..., None] * keys, matrix)


def start(mixer: Mixer) -> State:
    """The state in front of a text: zeros. `width-1 channel`, and `head d_key d_value`"""
    channels, width = mixer.kernel.shape
    window = mixer.kernel.new_zeros(width - 1, channels)
    if isinstance(mixer, ShortConvolution):
        return window
    heads = len(mixer.log_rate)
    matrix = window.new_zeros(heads, mixer.d_key, mixer.d_value, dtype=torch.float32)
    return MatrixState(window, matrix)


def is_in_float32(mixer: Mixer) -> bool:
    """Whether its families' own code computes it in float32 whatever the type of the model. Here it
    is, too."""
    return isinstance(mixer, GatedDeltaRule | StateSpace)


def mix(mixer: Mixer, x: Tensor, state: State | None = None) -> Tensor:
    """z at every position from what the layer reads there.

    `... pos d_model`; `state`: what the positions before left behind, those of a text's beginning
    by default; of fewer axes where variants share it `-> ... pos d_mixed`

    Example:
        >>> import torch
        >>> mixer = ShortConvolution(torch.ones(1, 3), torch.tensor([[10.0, 1.0]]))
        >>> mix(mixer, torch.tensor([[1.0], [2.0], [3.0]])).flatten()  # b, c and h are x here
        tensor([  1.,  28., 147.])
        >>> state = state_behind(mixer, torch.tensor([[1.0], [2.0]]))
        >>> mix(mixer, torch.tensor([[3.0]]), state)  # the last position, from what was left
        tensor([[147.]])
    """
    state = start(mixer) if state is None else state
    if isinstance(mixer, StateSpace):
        assert isinstance(state, MatrixState)
        updates, own = _steps(mixer, x @ mixer.w_in, x, state.window)
        read = read_matrix(updates, state.matrix) + mixer.skip[:, None, None] * own
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
    """The state behind the last position, from what the layer reads at all of them.

    Apart from `mix`, because nothing follows on most variants of a position: a matrix for each
    would be the most that their swaps cost.
    """
    state = start(mixer) if state is None else state
    if isinstance(mixer, GatedDeltaRule | StateSpace):
        assert isinstance(state, MatrixState)
        channels = x @ mixer.w_in
        if isinstance(mixer, StateSpace):
            updates, _ = _steps(mixer, channels, x, state.window)
        else:
            updates = _updates(mixer, channels, x, state.window)
        return MatrixState(_left(state.window, channels), matrix_behind(updates, state.matrix))
    assert isinstance(state, Tensor)
    b, _, h = (x @ mixer.w_in).chunk(3, dim=-1)
    return _left(state, b * h)


def _updates(mixer: GatedDeltaRule, channels: Tensor, x: Tensor, window: Tensor) -> Updates:
    """Queries, keys and values from the channels, what is overwritten and kept from what is read.
    In float32, as its families' own code."""
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
    """The same of a state space, where a value is added times its step; and the values as they are,
    `... head pos d_value`."""
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
    """Vectors made one long. `... d`, unchanged"""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPSILON)
