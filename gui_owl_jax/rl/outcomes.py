"""From rewards to outcomes Z in {0, 1}: a declared success rule, and what it means for rewards to be equal.

A group is judged by its outcomes, never by a shaped reward: all-failed trajectories whose format bonuses differ
would otherwise get "phantom advantages". For the same reason rewards that differ only by float32 rounding are one
and the same reward.

    rewards          0.0   0.30  0.99999994  1.0
    SuccessRule()      0      0           1    1     reward >= 1
    SuccessRule(0.0, strict=True)
                       0      1           1    1     reward > 0
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from gui_owl_jax.agent.errors import DataError

# A few units in the last place of float32, relative to the larger of the reward and 1.
REWARD_TOLERANCE = 4 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class SuccessRule:
    """When a verifier's reward counts as success.

    Attributes:
      threshold: the reward that decides.
      strict: False: success is reward >= threshold. True: success is reward > threshold.
    """

    threshold: float = 1.0
    strict: bool = False

    def __call__(self, rewards: ArrayLike) -> np.ndarray:
        """Judges rewards of any shape.

        Args:
          rewards: finite numbers, any shape.

        Returns:
          int32 outcomes in {0, 1}, the same shape. A reward within float32 rounding of the threshold equals it.

        Raises:
          DataError: a reward is not finite (a trajectory without a verdict belongs in the validity mask).
        """
        values = np.asarray(rewards, np.float64)
        if not np.isfinite(values).all():
            bad = np.argwhere(~np.isfinite(values))[0].tolist()
            raise DataError(f"reward at index {bad} is not finite; mark trajectories without a verdict as invalid")
        margin = REWARD_TOLERANCE * max(1.0, abs(self.threshold))
        success = values > self.threshold + margin if self.strict else values >= self.threshold - margin
        return success.astype(np.int32)


def tied(rewards: jax.Array, members: jax.Array) -> jax.Array:
    """Tells groups whose rewards are all equal up to float32 rounding: the collapsed ones.

    Args:
      rewards: float [..., G].
      members: bool [..., G], which entries belong to the group.

    Returns:
      bool [...]; True also for groups of one member or none, which teach nothing either.
    """
    low = jnp.min(jnp.where(members, rewards, jnp.inf), axis=-1)
    high = jnp.max(jnp.where(members, rewards, -jnp.inf), axis=-1)
    scale = jnp.maximum(1.0, jnp.maximum(jnp.abs(low), jnp.abs(high)))
    return ~(high - low > REWARD_TOLERANCE * scale)
