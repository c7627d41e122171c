import pytest

from gui_owl_jax.agent.elements import ScreenElement


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (3, 5, 2, 7), (32, 64, 96, 32)])
def test_centre_lies_inside(box):
    element = ScreenElement("Mia", "row", box)
    assert element.contains(*element.centre)


def test_edges():
    element = ScreenElement("Mia", "row", (10, 20, 30, 40))
    assert element.centre == (25, 40)
    assert element.contains(10, 20) and element.contains(39, 59) and element.contains(39.9, 59.9)
    assert not any(element.contains(x, y) for x, y in [(9, 20), (10, 19), (40, 20), (10, 60)])
