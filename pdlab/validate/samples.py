"""Sets of microbatches as the bits of one integer: bit `shard * num_microbatches + microbatch`.

Union, overlap and what is missing are then single operations, however many ranks and microbatches there are.
"""

from dataclasses import dataclass
from functools import cached_property

from pdlab.mesh import DATA_AXES, Axis, Spread
from pdlab.program import Program, Type

UNKNOWN = -1
"""The set of a gradient that was begun before the program. It has all bits and is never checked."""

MOST_NAMED = 4


@dataclass(frozen=True)
class Samples:
    """All the microbatches of a program, on all data shards."""

    program: Program

    @cached_property
    def everything(self) -> int:
        return (1 << self.width) - 1

    @cached_property
    def microbatches(self) -> list[int]:
        """For each microbatch the set of it on all shards."""
        count, shards = self.program.num_microbatches, range(self.program.mesh.num_data_shards)
        return [sum(1 << shard * count + microbatch for shard in shards) for microbatch in range(count)]

    @cached_property
    def width(self) -> int:
        """How many bits one set takes."""
        return self.program.mesh.num_data_shards * self.program.num_microbatches

    def of_user(self, group: str, segment: str, found: int) -> int:
        """A set as the gradient that one of the users of a group has found."""
        return found << self.program.model.users[group].index(segment) * self.width

    def of_all_users(self, group: str, found: int) -> int:
        """A set as the gradient that all users of a group have found."""
        return sum(found << i * self.width for i in range(len(self.program.model.users[group])))

    @cached_property
    def first_bit(self) -> list[int]:
        """For each rank where the bits of its own data shard begin."""
        mesh = self.program.mesh
        return [mesh.data_shard(rank) * self.program.num_microbatches for rank in range(mesh.size)]

    @cached_property
    def _same_place(self) -> list[dict[Axis, int]]:
        """For each rank and data axis the samples of those shards that do not differ from it along that axis."""
        mesh, count = self.program.mesh, self.program.num_microbatches
        whole = (1 << count) - 1
        shards = {mesh.data_shard(rank): here for rank, here in enumerate(mesh.coordinates)}
        return [
            {
                axis: sum(whole << shard * count for shard, there in shards.items() if there[axis] == here[axis])
                for axis in DATA_AXES
            }
            for here in mesh.coordinates
        ]

    def visible(self, rank: int, t: Type) -> int:
        """What a value can hold: sharded along a data axis, it has the rows of the rank's own place there."""
        found = self.everything
        for axis, place in t.layout.places:
            if axis in DATA_AXES and place.spread is Spread.SHARD:
                found &= self._same_place[rank][axis]
        return found

    def say(self, found: int) -> str:
        """The first few of a set in words."""
        count = self.program.num_microbatches
        bits = list(dict.fromkeys(bit % self.width for bit in range(found.bit_length()) if found >> bit & 1))
        shards = self.program.mesh.num_data_shards > 1
        named = [f"microbatch {b % count}" + (f" of data shard {b // count}" if shards else "") for b in bits]
        more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        return " and ".join(named[:MOST_NAMED] + more) or "no microbatch"
