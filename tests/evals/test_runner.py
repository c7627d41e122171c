from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from gui_owl_jax.agent import dialects
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.agent.prompts import ImageRef, system_prompt
from gui_owl_jax.evals import runner
from gui_owl_jax.evals.answers import AnswerStore
from gui_owl_jax.evals.benchmark import ActionLabel, Benchmark, Box, Choice, Item, Reply
from gui_owl_jax.evals.grounding_rules import GroundingRule
from gui_owl_jax.evals.grounding_score import score
from gui_owl_jax.evals.score import FAILED, count_reasons
from gui_owl_jax.evals.zoom import ZoomConfig

DIALECT = dialects.get("gui_owl_eval")
ASKING = runner.Asking(DIALECT, batch=3)
DESKTOP = DeviceFamily.DESKTOP


def item(number: int, **changes) -> Item:
    fields = {"target": Box(0, 0, 10, 10), "family": DESKTOP, "image": f"{number}.png", **changes}
    return Item(f"item-{number}", f"Press button {number}", **fields)


ITEMS = [item(number) for number in range(8)]


@pytest.fixture
def images(tmp_path):
    """Screenshots of 20 x 10 pixels whose level of grey is their number; 2 is missing, 4 damaged, 5 cut off."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in (0, 1, 3, 6, 7):
        Image.new("RGB", (20, 10), (number,) * 3).save(folder / f"{number}.png")
    (folder / "4.png").write_bytes(b"no picture")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 20, 3), np.uint8)).save(folder / "5.png")
    (folder / "5.png").write_bytes((folder / "5.png").read_bytes()[:200])
    return folder


class Policy:
    """Answers with the level of grey that it sees; refuses requests about `broken`."""

    def __init__(self, broken: tuple[int, ...] = ()):
        self.calls: list[list[int]] = []
        self.broken = broken

    def __call__(self, requests):
        seen = [int(next(iter(request.images.values()))[0, 0, 0]) for request in requests]
        self.calls.append(seen)
        return [
            Reply("", failure="busy") if grey in self.broken else Reply(f"({grey}, {grey})", (32, 32)) for grey in seen
        ]


def run(tmp_path, images, policy, items=ITEMS, asking=ASKING, name="answers.jsonl"):
    with AnswerStore(tmp_path / name, {}) as store:
        runner.run(items, images, policy, asking, store)
        return store.answers


def test_every_item_gets_an_answer(tmp_path, images):
    policy = Policy(broken=(3,))
    answers = run(tmp_path, images, policy)
    assert list(answers) == [item.item_id for item in ITEMS]
    assert policy.calls == [[0, 1], [3], [6, 7]]  # batches of three items, without those whose image is bad
    assert answers["item-6"].looks[0].response == "(6, 6)" and answers["item-6"].size == (20, 10)
    assert answers["item-6"].looks[0].window == (0, 0, 20, 10) and answers["item-6"].looks[0].shown == (32, 32)
    assert answers["item-2"].failure == "image 2.png is missing" and not answers["item-2"].looks
    assert all("cannot be read" in answers[f"item-{n}"].failure for n in (4, 5)) and "busy" in answers["item-3"].failure


def test_what_could_not_be_asked_is_counted_as_wrong(tmp_path, images):
    benchmark = Benchmark("small", tuple(ITEMS))
    found = score(benchmark, run(tmp_path, images, Policy()).values(), GroundingRule(), DIALECT)
    assert count_reasons(found.verdicts)[FAILED] == 3 and found.averages["micro"].successes == 5


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(3))
def test_a_killed_run_goes_on(tmp_path, images, at):
    """Killed within any batch: no item is stored twice, and the batch is asked as it would have been."""
    undisturbed = Policy()
    expected = run(tmp_path, images, undisturbed, name="undisturbed.jsonl")

    class Dying(Policy):
        def __call__(self, requests):
            replies = super().__call__(requests)
            if len(self.calls) > at:
                raise Killed
            return replies

    with pytest.raises(Killed):
        run(tmp_path, images, Dying())
    again = Policy()
    assert run(tmp_path, images, again) == expected and again.calls == undisturbed.calls[at:]
    assert (tmp_path / "answers.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    assert run(tmp_path, images, again) == expected and len(again.calls) == len(undisturbed.calls) - at


def test_a_batch_of_which_a_part_is_stored_is_asked_as_a_whole(tmp_path, images):
    expected = run(tmp_path, images, Policy())
    path = tmp_path / "answers.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]) + b'{"item_id": "item-1", "lo')
    policy = Policy()
    assert run(tmp_path, images, policy) == expected and policy.calls == [[0, 1], [3], [6, 7]]
    assert path.read_bytes() == whole


def test_zoom_asks_twice_and_maps_the_windows(tmp_path, images):
    policy = Policy()
    asking = dataclasses.replace(ASKING, zoom=ZoomConfig(0.5))
    answers = run(tmp_path, images, policy, asking=asking)
    assert [look.window for look in answers["item-0"].looks] == [(0, 0, 20, 10), (0, 0, 10, 5)]
    assert policy.calls == [[0, 1], [0, 1], [3], [3], [6, 7], [6, 7]]


def test_zoom_is_for_grounding_alone(tmp_path, images):
    items = [item(0, target=Choice("A", ("A", "B")))]
    with pytest.raises(ConfigError, match="'item-0' does not ask for a place"):
        run(tmp_path, images, Policy(), items, dataclasses.replace(ASKING, zoom=ZoomConfig(0.5)))


def test_choices_need_no_image(tmp_path, images):
    class Knowing:
        def __call__(self, requests):
            assert [list(request.images) for request in requests] in ([[], [0, 1]], [[0]])
            return [Reply('{"answer": "A"}') for _ in requests]

    choice = Choice("A", ("A", "B"))
    items = [item(0, target=choice, image=""), item(1, target=choice), item(2, target=choice, image="")]
    items[2] = dataclasses.replace(items[1], item_id="item-2", more_images=(items[1].image,))
    items.append(dataclasses.replace(items[2], item_id="item-3", more_images=("nowhere.png",)))
    answers = run(tmp_path, images, Knowing(), items)
    assert answers["item-0"].size is None and answers["item-1"].size == answers["item-2"].size == (20, 10)
    assert "nowhere.png is missing" in answers["item-3"].failure
    (asked,) = runner.messages(items[2], ASKING)
    assert asked.content[:2] == (ImageRef(0), ImageRef(1))
    (message,) = runner.messages(items[0], ASKING)
    assert len(message.content) == 1 and "A, B" in message.content[0] and "button 0" in message.content[0]


def test_places_are_asked_for_in_the_words_of_the_dialect():
    system, user = runner.messages(ITEMS[3], ASKING)
    assert system.content == (DIALECT.grounding_instructions(DESKTOP),)
    assert user.content == (ImageRef(0), "Press button 3")


@pytest.mark.parametrize("name", ["gui_owl_1_5", "ui_tars_1"])
def test_actions_are_asked_for_with_what_was_done(name):
    dialect = dialects.get(name)
    label = ActionLabel(Action("wait", time=2))
    asked = item(0, target=label, family=DeviceFamily.MOBILE, history=("Open the menu.", "Tap Save."))
    question = runner.request(asked, [np.zeros((4, 4, 3), np.uint8)], runner.Asking(dialect))
    system, user = question.messages
    own = system_prompt(DeviceFamily.MOBILE)
    assert system.content == (own if name == "gui_owl_1_5" else dialect.instructions(DeviceFamily.MOBILE),)
    text = "".join(part for part in user.content if isinstance(part, str))
    assert text.index("Press button 0") < text.index("Open the menu.") < text.index("Tap Save.")
    assert [part.step for part in user.content if isinstance(part, ImageRef)] == list(question.images)


def test_draws_depend_on_the_item_and_the_seed_alone():
    blank = [np.zeros((4, 4, 3), np.uint8)]
    seeds = [runner.request(item(n), blank, runner.Asking(DIALECT, seed=s)).seed for n in (0, 1) for s in (0, 1)]
    assert len(set(seeds)) == 4
    assert runner.request(item(0), blank, runner.Asking(DIALECT, seed=0, batch=1)).seed == seeds[0]


def test_the_fingerprint_tells_other_questions():
    same = runner.fingerprint(ITEMS, ASKING)
    assert same == runner.fingerprint([item(number) for number in range(8)], dataclasses.replace(ASKING, batch=5))
    others = [
        runner.fingerprint(ITEMS[:7], ASKING),
        runner.fingerprint([*ITEMS[:7], item(7, image="8.png")], ASKING),
        runner.fingerprint(ITEMS, dataclasses.replace(ASKING, dialect=dialects.get("ui_tars_1"))),
    ]
    assert len({same, *others}) == 4


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "a/../../secret.png"])
def test_images_outside_the_folder_are_not_opened(tmp_path, images, name):
    Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    answers = run(tmp_path, images, Policy(), [item(0, image=name)])
    assert "outside" in answers["item-0"].failure


def test_images_of_every_mode_are_rgb(tmp_path):
    for mode in ("L", "P", "RGBA", "1", "I;16"):
        Image.new(mode, (3, 2)).save(tmp_path / "a.png")
        found = runner.open_image(tmp_path, "a.png")
        assert found.shape == (2, 3, 3) and found.dtype == np.uint8
