import itertools
import string

import numpy as np

from envs.virtual.font import ADVANCE, GLYPHS, UNKNOWN, text_mask
from envs.virtual.lexicon import NUMBERS, WORDS


def test_font_has_letters_digits_and_punctuation():
    assert set(string.ascii_letters + string.digits + " .,:!?'-+/()=_@#%&*$\"<>") <= set(GLYPHS)


def test_glyphs_differ_pairwise_and_from_the_unknown_box():
    shapes = {**GLYPHS, "unknown": UNKNOWN}
    for (one, a), (other, b) in itertools.combinations(shapes.items(), 2):
        assert (a != b).sum() >= 2, (one, other)


def test_glyphs_never_touch_their_neighbours():
    for character, glyph in GLYPHS.items():
        assert glyph.shape == (8, ADVANCE)
        assert not glyph[:, 0].any() and not glyph[:, 6:].any(), character
        assert glyph.any() == (character != " ")


def test_words_differ_in_many_pixels():
    # A word must not be mistaken for another by a model that sees it once.
    padded = {word: np.pad(text_mask(word), ((0, 0), (0, 40 - 8 * len(word)))) for word in WORDS + NUMBERS}
    for (one, a), (other, b) in itertools.combinations(padded.items(), 2):
        assert (a != b).sum() >= 4, (one, other)


def test_text_mask_sets_characters_side_by_side():
    mask = text_mask("A.b")
    assert mask.shape == (8, 24)
    np.testing.assert_array_equal(mask[:, 8:16], GLYPHS["."])
    np.testing.assert_array_equal(text_mask("\u6f22"), UNKNOWN)
    assert text_mask("").shape == (8, 0)
