import re

import pytest

from tff_mf.experiments.datasets import _prose

GOOGLE = """Computes the running mean of a stream of numbers.

The mean is kept in one number, so memory does not grow.
See https://example.org/mean for the derivation.

```python
mean = running_mean([1, 2, 3]) is not prose but code.
```

Usage:

  >>> running_mean([1, 2])
  This line is the output of the doctest above.

Args:
  values: The numbers to take the mean of.
  dtype (Optional[str]): An optional name of the type to compute in.
  *args: Rest.

Returns:
  A `float` that is never NaN, e.g. the mean. It may be `tf.Tensor([1.0])`.
"""

NUMPY = """
    Solve the linear system for the unknown vector.

    Parameters
    ----------
    a : (M, M) array_like
        A square matrix of full rank.
    overwrite_a : bool, optional
        Allow overwriting data in `a` (may improve performance).

    Returns
    -------
    x : ndarray
        The solution of the system.

    ========  =======================
    method    how it is the best one.
    ========  =======================

    +-----+-------------------------+
    | one | this is a grid table.   |
    +-----+-------------------------+

    References
    ----------
    .. [1] A. Author, "The title of the book is here." Publisher, 1999.
"""

REST = """Bind a :class:`~sqlalchemy.Engine` to the *current* session.

.. versionadded:: 1.4  The engine may also be a connection.

.. code-block:: python

    engine = this_is_code("and it is left out.")

.. note:: This is not safe
    for use by several threads.

Here is what to do::

    call the function as it is shown here.

:param name: the name of the `engine <https://example.org>`_ to use.
:type name: this type line is not for reading.
:return: the very same session.

1. First of all, the session is flushed.
2. Then it's closed by ``close()``.
"""


def _all(docstring):
    return list(_prose.sentences(docstring))


def test_google_style():
    assert _all(GOOGLE) == [
        "Computes the running mean of a stream of numbers.",
        "The mean is kept in one number, so memory does not grow.",
        "The numbers to take the mean of.",
        "An optional name of the type to compute in.",
        "A float that is never NaN, e.g. the mean.",
    ]


def test_numpy_style():
    assert _all(NUMPY) == [
        "Solve the linear system for the unknown vector.",
        "A square matrix of full rank.",
        "Allow overwriting data in a (may improve performance).",
        "The solution of the system.",
    ]


def test_restructured_text():
    assert _all(REST) == [
        "Bind a Engine to the current session.",
        "The engine may also be a connection.",
        "This is not safe for use by several threads.",
        "Here is what to do:",
        "the name of the engine to use.",
        "the very same session.",
        "First of all, the session is flushed.",
        "Then it's closed by close.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "x = the value of the function at the point.",
        "for i in range(10): this is a loop.",
        "-----------------------------------------",
        "$ tff-mf is what to type in the shell.",
        "Usage: prog [options] the file that is read.",
        "C:\\path\\to the file of the user.",
        "name    the name of the thing is here.",
        "foo(a, b) -> the sum of the two.",
        "Die Funktion gibt größere Werte zurück.",
        "GPU CPU TPU JAX XLA API.",
        "tf.a tf.b tf.c tf.d of tf.e.",
        "Too short.",
        "an unfinished ( sentence of this sort.",
        '"an unfinished quotation is this.',
        "",
        "word " * 200 + "is the end.",
    ],
)
def test_what_is_no_prose_is_left_out(line):
    # Behind a summary line: only that may lack a full stop.
    assert _all("The summary is here.\n\n" + line) == ["The summary is here."]


def test_a_summary_line_needs_no_full_stop_but_any_other_fragment_does():
    assert _all("Return the list of the names\n\nA heading of the section") == ["Return the list of the names"]


def test_a_sentence_ends_at_its_end_only():
    text = (
        "This is by J. Smith et al. and holds for e.g. version 3.5 of it. Is that really so? It is so (see above). "
        "The vector is X. The end is near."
    )
    assert _all(text) == [
        "This is by J. Smith et al. and holds for e.g. version 3.5 of it.",
        "Is that really so?",
        "It is so (see above).",
        "The vector is X.",
        "The end is near.",
    ]


def test_lines_of_a_paragraph_are_joined():
    assert _all("This sentence goes\non in the next line.") == ["This sentence goes on in the next line."]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It's a well-known rule, isn't it?", "it's a well-known rule , isn't it ?"),
        ('Say "yes" (or no); then go!', 'say " yes " ( or no ) ; then go !'),
        ("Use os.path and/or my_name, e.g. v3.5.", "use os.path and/or my_name , e.g. v3.5 ."),
    ],
)
def test_tokens(sentence, expected):
    assert _prose.tokens(sentence) == expected
    assert _prose.tokens(expected).replace(" ", "") == expected.replace(" ", "")


def test_tokens_are_stackoverflows_own_where_no_name_has_a_dot():
    # From tff.simulation.datasets.stackoverflow.get_synthetic().
    written = "If you're using SQL 2005 or better this is a nice, simple-ish median calculation for a single column:"
    own = "if you're using sql 2005 or better this is a nice , simple-ish median calculation for a single column :"
    assert _prose.tokens(written) == own


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST])
def test_every_sentence_becomes_tokens_between_single_spaces(docstring):
    for sentence in _all(docstring):
        assert re.fullmatch(r"[!-~]+( [!-~]+)*", _prose.tokens(sentence))
