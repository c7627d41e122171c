"""Scripted policies: they solve every task by looking at the state behind the screen."""

from __future__ import annotations

from collections.abc import Iterator

from envs.interface import TaskSpec
from envs.virtual.hand import Hand, click_action, element_phrase
from envs.virtual.template import Move
from envs.virtual.world import World, template_of

__all__ = ["click_action", "element_phrase", "plan", "policy"]


def policy(task: TaskSpec, world: World) -> Iterator[Move]:
    """The moves (conclusion, action) that solve `task`, from its start.

    Each move is made for the screen that `world` shows when it is asked for: do it before asking for the next one.
    """
    return template_of(task).script(task.params, Hand(world))


def plan(task: TaskSpec, scale: int = 1) -> list[Move]:
    """All moves that solve `task`, found in a world of its own: for environments whose state is out of reach.

    Args:
      task: the task.
      scale: scale of the world that the moves are meant for.
    """
    world = World(scale)
    world.reset(task)
    moves = []
    for move in policy(task, world):
        moves.append(move)
        world.step(move[1])
    return moves
