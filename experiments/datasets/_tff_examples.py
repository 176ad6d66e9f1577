"""Examples of a client as TFF's writer of data sets asks for them."""

from collections.abc import Iterator, Mapping, Sequence

# StackOverflow has a date with every example; a docstring has none.
_NO_DATE = b"1970-01-01 00:00:00 UTC"


class Examples:
    """Stands in for a `tf.data.Dataset`: TFF's writer asks one for its element_spec and its elements, no more.

    A real data set of every client takes several times as long as all the rest of the work.
    """

    def __init__(self, name: str, examples: Sequence[tuple[str, str]]):
        self._name = name
        self._examples = examples

    @property
    def element_spec(self) -> Mapping[str, object]:
        from .sqlite import element_spec

        return element_spec()

    def __iter__(self) -> Iterator[Mapping[str, "_Value"]]:
        import numpy as np

        date, score, kind = _Value(_NO_DATE), _Value(np.zeros([], np.int64)), _Value(b"answer")
        tags = _Value("|".join(self._name.split(".")).encode())
        for title, text in self._examples:
            yield {
                "creation_date": date,
                "score": score,
                "tags": tags,
                "title": _Value(title.encode()),
                "tokens": _Value(text.encode()),
                "type": kind,
            }


class _Value:
    """Stands in for an eager tensor, of which TFF's writer wants the value."""

    def __init__(self, value):
        self._value = value

    def numpy(self):
        return self._value
