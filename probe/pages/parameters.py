"""What a count of parameters comes to, in sentences, for the terminal and the page of a walk."""

from probe.model.parameters import Count, count
from probe.stats.numbers import percent


def parameter_sentences(counted: Count) -> list[str]:
    """What the table of parameters comes to, in sentences."""
    s = counted.sizes
    share = percent(counted.attention / counted.total)
    both = 2 * s.d_model * s.d_head
    shared = s.n_heads // (s.n_kv_heads or s.n_heads)
    beside = f", key and value shared by {shared} heads" if shared > 1 else ""
    heads = (
        f"Per head {counted.per_head:,}{beside}; "
        f"per block of {s.n_heads} heads {counted.per_block:,}; "
        f"attention in all {counted.attention:,}, {share} of {counted.total:,}."
    )
    square = (
        f"A full square value matrix ({s.d_model:,} x {s.d_model:,}) would have "
        f"{counted.square_value:,} where value down and value up have {both:,}."
    )
    lines = [heads, square]
    if s.tied:
        lines.append(
            "The unembedding is the transposed token embedding (tied weights): counted once."
        )
    if counted.matrices_only:
        elsewhere = count(s).total - counted.total
        lines.append(
            "By formula, weight matrices only, the unembedding apart from the embedding, as "
            "introductions count; position embeddings, biases and norms would be "
            f"{elsewhere:,} more."
        )
    if counted.tensors:
        lines.append(
            f"Counted from the {counted.tensors} tensors of the loaded model; the formula gives "
            "the same."
        )
    return lines
