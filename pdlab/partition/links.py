"""What communication costs: messages between stages, and the sums of gradients among the replicas of one.

One convention throughout, the paper's: a rank's link carries all of its messages one after the other, those that it
sends and those that it receives, each in latency + bytes / bandwidth. So

    two stages    the activation goes forward and its gradient comes back           2 a / B
    ring          m replicas sum in 2 (m - 1) rounds; in each a rank sends and
                  receives an m-th of the w bytes                                   4 (m - 1) w / m / B
    messages      each replica sends all of its gradient to the m - 1 others,
                  and receives theirs                                               2 (m - 1) w / B

Harlap et al. 2018 (arXiv:1806.03377, section 3.2) have the first two (they think of a sharded parameter server, which
moves what a ring moves), Narayanan et al. (SOSP 2019, section 3.1) the first and the third. The third is what the lab's
own programs do (`passes/copies`). Both papers charge the message between two stages in full, however many replicas send
and receive it; where each of them has a link of its own, the true time is less.

All that moves is taken to be hidden under other minibatches, so a prediction is a bound. Simulated, the lab's programs
reach it with free links where no stage but the first is replicated. Otherwise they may be slower: the warm-up of 1F1B
has no minibatches to spare for what is on its way, and replicas wait for each other's gradients at every step.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import assert_never

from pdlab.partition.layer import LARGEST, check_amount


class Sums(Enum):
    """How the replicas of a stage sum their gradients."""

    RING = "ring"
    MESSAGES = "messages"


@dataclass(frozen=True)
class Links:
    """`bandwidth` of a rank's link in bytes per second (inf: free), `latency` in seconds per message. What has no bytes
    is not sent."""

    bandwidth: float = inf
    latency: float = 0.0
    sums: Sums = Sums.RING

    def __post_init__(self) -> None:
        check_amount(self.bandwidth, "bandwidth (bytes per second; inf: links take no time)", 1 / LARGEST, inf)
        check_amount(self.latency, "latency (seconds per message)")
        if not isinstance(self.sums, Sums):
            raise ValueError(f"sums is {self.sums!r}; give Sums.RING or Sums.MESSAGES")

    def __str__(self) -> str:
        wire = "links" if self.latency else "free links" if self.bandwidth == inf else "links of"
        speed = f" {self.bandwidth:g} bytes/s" if self.bandwidth < inf else ""
        wait = f" {self.latency:g} s a message" if self.latency else ""
        return f"{wire}{speed}{' +' if speed and wait else ''}{wait}, gradients summed by {self.sums.value}"

    def message_seconds(self, activation_bytes: float) -> float:
        """What two neighbouring stages exchange for a minibatch."""
        return self._seconds(2, 2 * activation_bytes)

    def sum_seconds(self, parameter_bytes: float, replicas: int) -> float:
        """One sum of the gradients of all replicas of a stage; there is one in a round, that is, once every `replicas`
        minibatches."""
        others = replicas - 1
        match self.sums:
            case Sums.RING:
                return self._seconds(4 * others, 4 * others * parameter_bytes / replicas)
            case Sums.MESSAGES:
                return self._seconds(2 * others, 2 * others * parameter_bytes)
            case _:
                assert_never(self.sums)

    def _seconds(self, num_messages: int, size: float) -> float:
        return num_messages * self.latency + size / self.bandwidth if size else 0.0


def stage_seconds(seconds: float, parameter_bytes: float, replicas: int, links: Links) -> float:
    """Seconds per minibatch of a stage whose layers take `seconds` and have `parameter_bytes`, on `replicas` ranks:
    T(i -> j, m) of the paper (section 3.2).

        T = max(sum of T_l, sum of W_l) / m

    In a round each of the m replicas has one minibatch, and all sum their gradients once; the sums are under the
    computation of the next minibatch, so the longer of the two counts. (The optimizer that the authors released,
    github.com/msr-fiddle/pipedream, adds the two: nothing overlaps.)
    """
    return max(seconds, links.sum_seconds(parameter_bytes, replicas)) / replicas
