"""From serialized examples to the words that a model takes, for a whole cohort in one call."""

from collections.abc import Callable, Sequence

import tensorflow as tf
import tensorflow_federated as tff

_stackoverflow = tff.simulation.baselines.stackoverflow

SEQUENCE_LENGTH = _stackoverflow.DEFAULT_SEQUENCE_LENGTH


def build_word_ids(vocabulary: Sequence[str]) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the function from serialized examples to their words, as TFF's preprocessing numbers them.

    It takes a string tensor `[sentences]` and returns words, int32 `[sentences, 21]` (beginning of sentence, at most 20
    words, end of sentence if there is room, padding), and how many of them are to be predicted, int32 `[sentences]`.

    Args:
        vocabulary: The words that the model knows.
    """
    special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(len(vocabulary))
    initial = tf.lookup.KeyValueTensorInitializer(list(vocabulary), tf.range(len(vocabulary), dtype=tf.int64))
    table = tf.lookup.StaticVocabularyTable(initial, num_oov_buckets=len(special.out_of_vocab))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def word_ids(examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.io.parse_example(examples, {"tokens": tf.io.FixedLenFeature([], tf.string)})["tokens"]
        split = tf.strings.split(texts, sep=" ")[:, :SEQUENCE_LENGTH]
        found = split.with_values(tf.cast(table.lookup(split.values) + 1, tf.int32))
        lengths = tf.cast(found.row_lengths(), tf.int32)
        padded = found.to_tensor(default_value=special.padding, shape=[None, SEQUENCE_LENGTH])
        # One beyond the last column of a sentence that fills all of them: no end of sentence then.
        ended = padded + tf.one_hot(lengths, SEQUENCE_LENGTH, on_value=special.end_of_sentence, dtype=tf.int32)
        begin = tf.fill([tf.size(texts), 1], special.beginning_of_sentence)
        return tf.concat([begin, ended], axis=1), tf.minimum(lengths + 1, SEQUENCE_LENGTH)

    return word_ids
