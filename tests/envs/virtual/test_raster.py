import itertools

import numpy as np
import pytest

from envs.virtual.font import text_mask
from envs.virtual.raster import TEXT_X, TEXT_Y, render
from envs.virtual.widgets import CELL, Kind, page, place
from gui_owl_jax.agent.devices import DeviceFamily

WEB, DESKTOP = DeviceFamily.WEB, DeviceFamily.DESKTOP
TEXTUAL = [kind for kind in Kind if kind not in (Kind.PAGE, Kind.SCROLLBAR)]


def ink_of(image, x, y, text):
    """Where the text area at a cell differs from its background (its most common colour), bool [8, 8 * len(text) - 2].

    Its last two columns, always empty in the font, are left out: a border may stand there.
    """
    area = image[y + TEXT_Y : y + TEXT_Y + 8, x + TEXT_X : x + TEXT_X + 8 * len(text) - 2]
    colours, counts = np.unique(area.reshape(-1, 3), axis=0, return_counts=True)
    return (area != colours[counts.argmax()]).any(axis=-1)


@pytest.mark.parametrize("kind", TEXTUAL)
@pytest.mark.parametrize("on", [False, True])
def test_text_is_drawn_whole_at_the_same_offset_for_every_kind(kind, on):
    image = render(page(WEB, place(kind, "Mia", 2, 1, 2, on=on)))
    np.testing.assert_array_equal(ink_of(image, 64, 32, "Mia"), text_mask("Mia")[:, :-2])


@pytest.mark.parametrize("kind", TEXTUAL)
@pytest.mark.parametrize("on", [False, True])
def test_text_has_high_contrast(kind, on):
    image = render(page(WEB, place(kind, "Mia", 0, 0, on=on))).astype(float) / 255
    area, mask = image[TEXT_Y : TEXT_Y + 8, TEXT_X : TEXT_X + 24], text_mask("Mia")
    linear = np.where(area <= 0.04045, area / 12.92, ((area + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    ink, paper = sorted((luminance[mask].mean(), luminance[~mask].mean()))
    assert (paper + 0.05) / (ink + 0.05) >= 4.5  # WCAG 2.1, contrast of text (AA)


def test_a_value_stands_in_the_last_cell_and_cuts_a_long_text():
    image = render(page(WEB, place(Kind.CELL, "Radios", 0, 0, 2, value="47")))
    np.testing.assert_array_equal(ink_of(image, 32, 0, "47"), text_mask("47")[:, :-2])
    np.testing.assert_array_equal(ink_of(image, 0, 0, "Rad"), text_mask("Rad")[:, :-2])


def test_widgets_stay_inside_their_cells():
    blank = render(page(WEB))
    for kind in TEXTUAL:
        drawn = render(page(WEB, place(kind, "A very long text", 1, 1, 2, key="k:", on=True)), {"k:": 7})
        changed = (drawn != blank).any(axis=-1)
        changed[CELL : 2 * CELL, CELL : 3 * CELL] = False
        assert not changed.any(), kind


def test_state_is_visible():
    for kind in (Kind.SWITCH, Kind.OPTION, Kind.TAB, Kind.FILE, Kind.FOLDER, Kind.CELL, Kind.BUBBLE, Kind.BUTTON):
        off, on = (render(page(WEB, place(kind, "Mia", 0, 0, on=on))) for on in (False, True))
        assert (off != on).any(axis=-1).sum() > 100, kind
    plain, focused = (render(page(WEB, place(Kind.FIELD, "Mia", 0, 0, 2, focused=on))) for on in (False, True))
    assert (plain != focused).any(axis=-1).sum() > 100


def test_kinds_look_different():
    images = {kind: render(page(WEB, place(kind, "Mia", 0, 0, 2))) for kind in TEXTUAL}
    same = {(a, b) for a, b in itertools.combinations(TEXTUAL, 2) if np.array_equal(images[a], images[b])}
    assert not same


def test_marks_are_numbers_on_a_chip_beside_the_text():
    tree = page(WEB, place(Kind.LINK, "Mia", 0, 0, key="a:"))
    plain = render(tree)
    seen = [render(tree, {"a:": label}) for label in range(1, 17)]
    for one, other in itertools.combinations(seen, 2):
        assert not np.array_equal(one, other)
    for image in seen[:9]:
        np.testing.assert_array_equal(image[:, TEXT_X:], plain[:, TEXT_X:])
    for image in seen[9:]:  # two digits stand above the text
        np.testing.assert_array_equal(image[TEXT_Y:, TEXT_X:], plain[TEXT_Y:, TEXT_X:])


def test_scale_repeats_pixels():
    tree = page(DESKTOP, place(Kind.FILE, "Pen", 1, 1, key="item:Pen"))
    one = render(tree, cursor=(40, 40))
    for scale in (2, 3):
        big = render(tree, cursor=(40, 40), scale=scale)
        assert big.shape == (96 * scale, 160 * scale, 3) and big.dtype == np.uint8
        for dy, dx in itertools.product(range(scale), repeat=2):
            np.testing.assert_array_equal(big[dy::scale, dx::scale], one)


def test_cursor_is_drawn_with_its_tip_at_the_pixel_and_cut_off_at_the_edge():
    blank = render(page(DESKTOP))
    image = render(page(DESKTOP), cursor=(50, 40))
    ys, xs = np.nonzero((image != blank).any(axis=-1))
    assert (xs.min(), ys.min()) == (50, 40)
    assert render(page(DESKTOP), cursor=(159, 95)).shape == blank.shape


def test_images_are_independent_arrays():
    tree = page(WEB, place(Kind.LINK, "Mia", 0, 0))
    first = render(tree)
    first[:] = 0
    assert render(tree).any()
