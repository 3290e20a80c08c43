"""Whole hooked forward passes under edits, and pairs of texts for them: the reference for every
swap, trace and path."""

import plain_forward
import torch
from families import RECURRENT, SINGLE, each_family
from handmade import tokens_of
from inside import TargetText, blocks, read_weights, target_states
from inside import attention as formulas
from inside import hooks as hooked

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
# If a family's code rounds to float32 in between, no two orders of sums agree better.
ROUNDED = 1e-6
HELD = ("z", "mlp_out")  # the writers
QUANTITIES = ("resid_pre", "attn_out", "mlp_out", "z", "resid_post")
LAYOUTS = ((9, 6, 2), (6, 5, 3), (5, 3, 0))  # tokens, position of the word, position of the cue
BOTH_WAYS = (3, 1, 0)  # every position is after the cue
EACH = each_family(*SINGLE)  # all but the representatives run in the campaign


def bound(model):
    rounded = ROUNDED if model.config.family.in_float32 else 0
    return max(BOUND[model.dtype], rounded, RECURRENT["atol"] if any(model.config.mixers) else 0)


TARGETS = (6, 0, 3, 6, 11)  # the position of the word in the texts of `random_rows`
AFTER = 4  # tokens after it: a causal swap runs without them


def random_rows(model, seed=0):
    """Random texts of several lengths without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [target + 1 + AFTER for target in TARGETS]
    ids = [
        torch.randint(5, model.config.d_vocab, (size,), generator=generator).tolist()
        for size in sizes
    ]
    return [TargetText(tuple(row), target) for row, target in zip(ids, TARGETS, strict=True)]


def random_z(model, depth, seed=1):
    c, generator = model.config, torch.Generator().manual_seed(seed)
    return torch.randn(
        len(TARGETS), depth, c.n_heads, c.d_head, generator=generator, dtype=model.dtype
    )


def every_direction(model):
    return torch.eye(model.config.d_model, dtype=model.dtype)


def target_z(model, texts):
    """z of every head at the word of each text, from hooks. `-> row layer head d_head`"""
    at = [text.at if isinstance(text, TargetText) else len(text) - 1 for text in texts]
    ids = [text.ids if isinstance(text, TargetText) else text for text in texts]
    return target_states(model, [tokens_of(row) for row in ids], at).z


def drawn_pair(model, layout=LAYOUTS[0], seed=0):
    """Two texts that differ in one token, the cue."""
    length, at, cue = layout
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(5, model.config.d_vocab - 1, (length,), generator=generator).tolist()
    b = [*a[:cue], a[cue] + 1, *a[cue + 1 :]]
    return TargetText(tuple(a), at), TargetText(tuple(b), at)


def every_edge_between(model):
    """A pair, the position of its word, and all positions, counted from it, from the cue to the
    last position that is read."""
    length, at, cue = layout = LAYOUTS[1] if model.config.causal else BOTH_WAYS
    return drawn_pair(model, layout), at, range(cue - at, length - at)


def hook_name(model, layer, quantity):
    """Empty if a layer without attention has no such quantity."""
    (attention,) = model.config.family.attentions
    hook = attention.hook_in(quantity, has_heads=model.config.has_heads(layer))
    return hook and f"{attention.blocks}.{layer}.{hook}"


def read_rows(model, rows, quantities, edits=()):
    """Quantities of every layer of a hooked forward pass, `layer row pos ...`, under edits (layer,
    quantity, function); "logits" are `row pos d_vocab`."""
    values = {name: {} for name in quantities if name != "logits"}

    def reader(name, layer):
        def read(tensor, hook):
            values[name][layer] = tensor * model.config.hook_scale(name, layer)

        return read

    def editor(name, layer, change):
        scale = model.config.hook_scale(name, layer)

        def edit(tensor, hook):
            tensor = tensor * scale
            change(tensor)
            return tensor / scale

        return edit

    layers = range(model.config.n_layers)
    hooks = [
        (hook_name(model, layer, name), editor(name, layer, change))
        for layer, name, change in edits
    ]
    hooks += [
        (hook_name(model, layer, name), reader(name, layer))
        for name in values
        for layer in layers
        if hook_name(model, layer, name)
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        logits = hooked.run(model, rows)
    whole = {"logits": logits} if "logits" in quantities else {}
    for name, parts in values.items():
        absent = torch.zeros_like(next(iter(parts.values())))
        whole[name] = torch.stack([parts.get(layer, absent) for layer in layers])
    return whole


def run_with_swaps(model, text, swaps):
    """For each of `swaps`, z at the word by (layer, head), in one row of a whole hooked forward
    pass: the stream at the word after every block, `layer row d_model`, and its logits before a
    family's soft cap."""
    edits = [
        (layer, "z", edit_at((text.at, head), value, row))
        for row, values in enumerate(swaps)
        for (layer, head), value in values.items()
    ]
    values = read_rows(model, [text.ids] * len(swaps), ["resid_post", "logits"], edits)
    logits, limit = values["logits"][:, text.at], model.config.final_logit_softcapping
    streams = values["resid_post"][:, :, text.at]
    return streams, limit * torch.atanh(logits / limit) if limit else logits


def read_all(model, ids, quantities, edits=()):
    """The same for one text: `layer pos ...`."""
    whole = read_rows(model, [ids], quantities, edits)
    return {name: whole[name][:, 0] for name in quantities}


def edit_at(index, value, row=slice(None)):
    """An edit of every row, or of one row, at a position, of one head there or of all heads."""
    index = index if isinstance(index, tuple) else (index,)

    def change(tensor):
        tensor[(row, *index)] = value

    return change


def edit_at_each(indices, values):
    """An edit of every row, at a different position in each."""

    def change(tensor):
        for row, (index, value) in enumerate(zip(indices, values, strict=True)):
            tensor[(row, *index)] = value

    return change


SENDER = ["sender_layer", "sender_head", "sender_pos"]


class Plain:
    """Both members of a pair through the hooked model, and the results of its forward passes for
    single edges."""

    def __init__(self, model, pair, at):
        self.model, self.weights, self.at = model, read_weights(model), at
        self.ids, self.layers = [text.ids for text in pair], range(model.config.n_layers)
        self.reads = (
            "resid_pre" if model.config.family.parallel_attn_mlp else "resid_mid"
        )  # the input of an MLP
        self.runs = [
            read_all(model, ids, {*QUANTITIES, "q", "k", "v", self.reads}) for ids in self.ids
        ]
        self.scale = max(run["resid_post"][-1, at].abs().max() for run in self.runs)
        self.cache = {}

    def run_senders(self, side, edges):
        """The runs of `inputs_after` and `receiver_qkv` for these edges, with each sender in a row of one
        forward pass."""
        ids, clean, donor = self.ids[side], self.runs[side], self.runs[1 - side]
        senders = list(dict.fromkeys(edge[SENDER].tolist() for edge in edges))
        edits = self.freeze_writers(clean)
        for row, sender in enumerate(senders):
            name, (layer, *index) = self.written_by(*sender)
            edits.append((layer, name, edit_at(tuple(index), donor[name][(layer, *index)], row)))
        rows = read_rows(self.model, [ids] * len(senders), {"resid_pre", self.reads}, edits)
        for row, sender in enumerate(senders):
            self.cache[(side, *sender)] = {name: part[:, row] for name, part in rows.items()}
        for layer in sorted(set(edges["receiver_layer"].tolist())):
            into = edges[(edges["receiver_layer"] == layer) & (edges["receiver_head"] >= 0)]
            senders = list(dict.fromkeys(edge[SENDER].tolist() for edge in into))
            if not senders:
                continue
            edits = []
            for row, sender in enumerate(senders):
                at = self.at + sender[-1]
                arriving = self.cache[(side, *sender)]["resid_pre"][layer, at]
                edits.append((layer, "resid_pre", edit_at(at, arriving, row)))
            rows = read_rows(self.model, [ids] * len(senders), "qkv", edits)
            for row, sender in enumerate(senders):
                qkv = {name: part[:, row] for name, part in rows.items()}
                self.cache[(side, *sender, layer)] = qkv

    def written_by(self, layer, head, pos):
        """The quantity that a sender writes, with its layer and position."""
        at = self.at + pos
        if layer < 0:
            return "resid_pre", (0, at)
        return ("mlp_out", (layer, at)) if head < 0 else ("z", (layer, at, head))

    def freeze_writers(self, clean):
        """Edits that freeze all writers."""
        return [
            (number, name, edit_at(slice(None), clean[name][number]))
            for name in HELD
            for number in self.layers
        ]

    def inputs_after(self, side, edge):
        """The inputs of the heads and of the MLP of every layer at the sender's position, if z of
        the sending head or the output of the sending MLP is the donor's there, and all others are
        frozen."""
        return self.cache[(side, *edge[SENDER].tolist())]

    def receiver_qkv(self, side, edge):
        """q, k and v of the receiver's layer if its input at the sender's position is the arriving
        one."""
        layer = int(edge["receiver_layer"])
        run = self.cache[(side, *edge[SENDER].tolist(), layer)]
        return {name: part[layer] for name, part in run.items()}

    def z(self, side, edge):
        """The receiver's z along the edge."""
        sender, channel = edge[SENDER].tolist(), edge["channel"]
        layer, head, pos = (
            int(edge[name]) for name in ("receiver_layer", "receiver_head", "receiver_pos")
        )
        key = (side, *sender, layer, channel)
        if key not in self.cache:  # z of all heads of the layer
            steps = {name: self.runs[side][name][layer].clone() for name in "qkv"}
            role, at = channel[0], self.at + sender[-1]
            steps[role][at] = self.receiver_qkv(side, edge)[role][at]
            q, k, v = (
                formulas.repeat_kv(part.transpose(0, 1), self.model.config.n_heads)
                for part in steps.values()
            )
            bias = blocks.position_bias(self.weights, q.shape[-2])
            scores = plain_forward.score(self.weights, self.weights.blocks[layer], q, k, bias)
            pattern = formulas.softmax(scores)
            self.cache[key] = pattern.to(v) @ v
        return self.cache[key][head, self.at + pos]

    def mlp_out(self, side, edge):
        """The output of the receiving MLP along the edge."""
        layer, pos = int(edge["receiver_layer"]), self.at + int(edge["sender_pos"])
        entered = self.inputs_after(side, edge)[self.reads][layer, pos]
        block = self.weights.blocks[layer]
        return plain_forward.mlp(self.weights, block, entered, entered)["mlp_out"]

    def receiver_response(self, side, edge):
        """The receiver's response to the edge, and the quantity that it replaces: z of a head, or
        the output of an MLP."""
        layer, head, pos = (
            int(edge[name]) for name in ("receiver_layer", "receiver_head", "receiver_pos")
        )
        name, index = (
            ("z", (layer, self.at + pos, head))
            if head >= 0
            else ("mlp_out", (layer, self.at + pos))
        )
        patched = self.z(side, edge) if head >= 0 else self.mlp_out(side, edge)
        clean, donor = (run[name][index] for run in (self.runs[side], self.runs[1 - side]))
        return name, index, patched - clean, donor - clean

    def shifts_of(self, side, responses, *, frozen):
        """How far the word's vector moves with the responses to several edges of one kind of
        receiver in one layer, with everything after it frozen or live. `-> edge d_model`"""
        clean, (name, (layer, *_), *_) = self.runs[side], responses[0]
        values = [clean[name][index] + change for _, index, change, _ in responses]
        edits = [(layer, name, edit_at_each([index[1:] for _, index, *_ in responses], values))]
        if frozen:
            later = range(layer + 1, self.model.config.n_layers)
            edits += [(number, "z", edit_at(slice(None), clean["z"][number])) for number in later]
            frozen_mlps = (layer, *later) if name == "z" else later
            edits += [
                (number, "mlp_out", edit_at(slice(None), clean["mlp_out"][number]))
                for number in frozen_mlps
            ]
        run = read_rows(self.model, [self.ids[side]] * len(responses), ["resid_post"], edits)
        return (run["resid_post"] - clean["resid_post"][:, None])[-1, :, self.at]


def moved_by_places(model, ids, clean, donor, at, layer, name, indices):
    """How far the last vector at `at` moves if a quantity of a layer is the donor's at a position,
    with each position in a row of a hooked forward pass. `clean` and `donor`: the runs by `read_all`.
    """
    edit = layer, name, edit_at_each(indices, [donor[name][(layer, *index)] for index in indices])
    rows = read_rows(model, [ids] * len(indices), ["resid_post"], [edit])["resid_post"]
    return rows[-1, :, at] - clean["resid_post"][-1, at]
