"""Whole hooked forwards under edits, and pairs of texts for them: the other side of every trace and path."""

import torch
from families import SINGLE, family_model
from handmade import random_model

from probe.model import forward
from probe.model import hooks as hooked
from probe.model.architectures import FAMILIES
from probe.model.attention import share_heads
from probe.model.tokens import Placed
from probe.model.weights import read_weights

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDED = 1e-6  # where a family's own code rounds to float32 on the way, no two orders of sums agree better
ODD = "random GPT-2"
KINDS = (*SINGLE, ODD)
QUANTITIES = ("resid_pre", "attn_out", "mlp_out", "z", "resid_post")
LAYOUTS = ((9, 6, 2), (7, 6, 3), (5, 3, 0))  # tokens, place of the word, place of the cue

ADDING = [*(kind for kind in SINGLE if FAMILIES[kind].kind == "decoder" and FAMILIES[kind].adds_plainly), ODD]
NORMING = [kind for kind in SINGLE if kind not in ADDING]  # a norm stands behind what is written, or behind the sum


def typed(kinds):
    """Every kind in float64, and the first two in float32 as well."""
    return [*((kind, torch.float64) for kind in kinds), *((kind, torch.float32) for kind in kinds[:2])]


def made(kind, dtype=torch.float64):
    return random_model(dtype) if kind == ODD else family_model(kind, dtype)


def bound(model):
    return max(BOUND[model.dtype], ROUNDED if model.config.family.single else 0)


def drawn_pair(model, layout=LAYOUTS[0], seed=0):
    """Two texts that differ in one token, the cue."""
    length, at, cue = layout
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(5, model.config.d_vocab - 1, (length,), generator=generator).tolist()
    b = [*a[:cue], a[cue] + 1, *a[cue + 1 :]]
    return Placed(tuple(a), at), Placed(tuple(b), at)


def hook_name(model, layer, quantity):
    (attention,) = model.config.family.attentions
    return f"{attention.blocks}.{layer}.{attention.hooks[quantity]}"


def read_rows(model, rows, quantities, edits=()):
    """Named quantities of every layer of a whole hooked forward, `layer row pos ...`, under edits (layer, quantity,
    function).
    """
    seen = {name: {} for name in quantities}

    def reader(name, layer):
        def read(tensor, hook):
            seen[name][layer] = tensor.clone()

        return read

    def editor(change):
        def edit(tensor, hook):
            tensor = tensor.clone()
            change(tensor)
            return tensor

        return edit

    layers = range(model.config.n_layers)
    hooks = [(hook_name(model, layer, name), editor(change)) for layer, name, change in edits]
    hooks += [(hook_name(model, layer, name), reader(name, layer)) for name in quantities for layer in layers]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        hooked.run(model, rows)
    return {name: torch.stack([parts[layer] for layer in layers]) for name, parts in seen.items()}


def read_all(model, ids, quantities, edits=()):
    """The same of one text: `layer pos ...`."""
    return {name: part[:, 0] for name, part in read_rows(model, [ids], quantities, edits).items()}


def put(place, value):
    """An edit of every row at a position, of one head there or of all."""
    place = place if isinstance(place, tuple) else (place,)

    def change(tensor):
        tensor[(slice(None), *place)] = value

    return change


def put_each(places, values):
    """An edit of every row at a place of its own."""

    def change(tensor):
        for row, (place, value) in enumerate(zip(places, values, strict=True)):
            tensor[(row, *place)] = value

    return change


class Plain:
    """Both members of a pair through the hooked model, and what its forwards make of one edge."""

    def __init__(self, model, pair, at):
        self.model, self.weights, self.at = model, read_weights(model), at
        self.ids = [text.ids for text in pair]
        self.reads = "resid_pre" if model.config.family.parallel else "resid_mid"  # what an MLP reads
        self.runs = [read_all(model, ids, {*QUANTITIES, "q", "k", "v", self.reads}) for ids in self.ids]
        self.scale = max(run["resid_post"][-1, at].abs().max() for run in self.runs)
        self.seen = {}

    def write(self, side, layer, head, pos):
        """Donor's write less own of a sender."""
        own, donor = self.runs[side], self.runs[1 - side]
        if layer < 0:
            return donor["resid_pre"][0, pos] - own["resid_pre"][0, pos]
        if head < 0:
            return donor["mlp_out"][layer, pos] - own["mlp_out"][layer, pos]
        return (donor["z"] - own["z"])[layer, pos, head] @ self.weights.blocks[layer].w_o[head]

    def asked(self, side, edge, write):
        """q, k and v of the receiver's layer when its input at the sender's position holds a write beside its own."""
        layer, pos = int(edge["receiver_layer"]), self.at + int(edge["sender_pos"])
        edits = [(layer, "resid_pre", put(pos, self.runs[side]["resid_pre"][layer, pos] + write))]
        return {name: part[layer] for name, part in read_all(self.model, self.ids[side], "qkv", edits).items()}

    def asked_by_donor(self, side, edge):
        """The same with the donor's write less own, run once for every receiver of a layer."""
        sender = edge[["sender_layer", "sender_head", "sender_pos"]].tolist()
        key = (side, *sender, int(edge["receiver_layer"]))
        if key not in self.seen:
            self.seen[key] = self.asked(side, edge, self.write(side, *sender[:2], self.at + sender[2]))
        return self.seen[key]

    def z(self, side, edge, write=None):
        """The receiver's z along the edge."""
        layer, head, pos = (int(edge[name]) for name in ("receiver_layer", "receiver_head", "receiver_pos"))
        steps = {name: self.runs[side][name][layer].clone() for name in "qkv"}
        role, sender = edge["channel"][0], self.at + int(edge["sender_pos"])
        asked = self.asked_by_donor(side, edge) if write is None else self.asked(side, edge, write)
        steps[role][sender] = asked[role][sender]
        q, k, v = (share_heads(part.transpose(0, 1), self.model.config.n_heads) for part in steps.values())
        scores = forward.score(self.weights, self.weights.blocks[layer], q, k, None)
        pattern = forward.softmax(scores, self.model.config)
        return (pattern.to(v) @ v)[head, self.at + pos]

    def mlp_out(self, side, edge, write=None):
        """What the receiving MLP writes along the edge."""
        layer, head, pos, receiver = edge[["sender_layer", "sender_head", "sender_pos", "receiver_layer"]].tolist()
        block, pos = self.weights.blocks[receiver], self.at + pos
        write = self.write(side, layer, head, pos) if write is None else write
        changed = self.runs[side][self.reads][receiver, pos] + write
        return forward.mlp(block, changed, changed, self.model.config)["mlp_out"]

    def written(self, side, edge, write=None):
        """What the receiver makes of the edge, and what it is swapped for: z of a head, the output of an MLP."""
        layer, head, pos = (int(edge[name]) for name in ("receiver_layer", "receiver_head", "receiver_pos"))
        name, place = ("z", (layer, self.at + pos, head)) if head >= 0 else ("mlp_out", (layer, self.at + pos))
        made = self.z(side, edge, write) if head >= 0 else self.mlp_out(side, edge, write)
        own, donor = (run[name][place] for run in (self.runs[side], self.runs[1 - side]))
        return name, place, made - own, donor - own

    def moved(self, side, written, *, frozen):
        """How far the word's vector moves with what each of several edges makes of one kind of receiver in one layer,
        everything behind it as it was or live. `-> edge d_model`
        """
        own, (name, (layer, *_), *_) = self.runs[side], written[0]
        values = [own[name][place] + change for _, place, change, _ in written]
        edits = [(layer, name, put_each([place[1:] for _, place, *_ in written], values))]
        if frozen:
            later = range(layer + 1, self.model.config.n_layers)
            edits += [(number, "z", put(slice(None), own["z"][number])) for number in later]
            held = (layer, *later) if name == "z" else later
            edits += [(number, "mlp_out", put(slice(None), own["mlp_out"][number])) for number in held]
        rows = [self.ids[side]] * len(written)
        return (
            read_rows(self.model, rows, ["resid_post"], edits)["resid_post"][-1, :, self.at]
            - own["resid_post"][-1, self.at]
        )
