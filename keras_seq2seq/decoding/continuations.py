"""Continuations of the beams of each pool, and which of them to go on with."""

from typing import Any, NamedTuple

from keras import ops

from keras_seq2seq.decoding.options import SearchOptions
from keras_seq2seq.decoding.search import IMPOSSIBLE, POSSIBLE_ABOVE
from keras_seq2seq.gathers import take_by_row, take_rows


class Continuations(NamedTuple):
    """A token more for each beam, best first, all `(P, C)`.

    Attributes:
        choice: What they are sorted by; `IMPOSSIBLE` for what must not be chosen.
        ranking: Log-probability that the hypothesis ranks by.
        log_probs: Log-probability under the model.
        token_ids: int32.
        parents: The beam that goes on, int32.
        columns: The column among all candidates of the pool, int32.
    """

    choice: Any
    ranking: Any
    log_probs: Any
    token_ids: Any
    parents: Any
    columns: Any

    def at(self, order: Any) -> "Continuations":
        """Those in the columns `order`, `(P, K)`."""
        return Continuations(*(take_by_row(values, order) for values in self))


def best(continuations: Continuations, count: int) -> Continuations:
    """The first by `choice`."""
    choice, order = ops.top_k(continuations.choice, count)
    return continuations.at(ops.cast(order, "int32"))._replace(choice=choice)


def living(continuations: Continuations, end_id: int, num_beams: int) -> Continuations:
    """The N best that do not end."""
    ends = continuations.token_ids == end_id
    choice = ops.where(ends, IMPOSSIBLE, continuations.choice)
    _, order = ops.top_k(choice, num_beams)
    alive = continuations.at(ops.cast(order, "int32"))
    # Others come up only where there are not enough.
    dead = ops.logical_or(alive.token_ids == end_id, alive.choice <= POSSIBLE_ABOVE)
    return alive._replace(ranking=ops.where(dead, IMPOSSIBLE, alive.ranking))


def best_by_group(
    everything: Continuations, options: SearchOptions, groups: int, penalty: Any
) -> Continuations:
    """The 2N best of each group, knowing what the groups before it took.

    Args:
        everything: What every beam can go on with, `(B * G, C)`.
        options: Constants of the search.
        groups: G.
        penalty: What a token loses for each beam that took it, a scalar or `(B, 1)`.

    Returns:
        Continuations, `(B * G, 2N)`.

    Reference:
        Vijayakumar et al., 2018, section 3, with Hamming diversity.
    """
    columns = everything.choice.shape[1]
    num_beams = options.num_beams // groups
    grouped = [ops.reshape(values, (-1, groups, columns)) for values in everything]
    chosen: list[Continuations] = []
    taken: list[Any] = []
    for group in range(groups):
        own = Continuations(*(take_rows(values, group, axis=1) for values in grouped))
        if taken:
            before = ops.concatenate(taken, axis=1)  # (B, M)
            same = ops.expand_dims(own.token_ids, axis=2) == ops.expand_dims(
                before, axis=1
            )
            times = ops.sum(ops.cast(same, "float32"), axis=2)
            choice = ops.maximum(own.choice - penalty * times, IMPOSSIBLE)
            own = own._replace(choice=choice)
        chosen.append(best(own, 2 * num_beams))
        taken.append(_taken(chosen[-1], options, num_beams))
    return Continuations(
        *(
            ops.reshape(ops.stack(values, axis=1), (-1, 2 * num_beams))
            for values in zip(*chosen, strict=True)
        )
    )


def _taken(found: Continuations, options: SearchOptions, num_beams: int) -> Any:
    """The tokens that a group goes on with or ends by, `(B, M)`; -1 for none."""
    places = ops.expand_dims(ops.arange(num_beams, dtype="int32"), axis=0)
    first = found.at(ops.zeros_like(found.parents[:, :num_beams]) + places)
    possible = first.choice > POSSIBLE_ABOVE
    if options.alternatives:  # the only beam goes on, or ends
        return ops.where(possible, first.token_ids, -1)
    ends = ops.logical_and(possible, first.token_ids == options.end_id)
    alive = living(found, options.end_id, num_beams)
    return ops.concatenate(
        [
            ops.where(alive.ranking > POSSIBLE_ABOVE, alive.token_ids, -1),
            ops.where(ends, options.end_id, -1),
        ],
        axis=1,
    )
