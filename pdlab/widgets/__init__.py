"""Widgets for notebooks: they wire controls to the pure functions of the package and hold no idea of their own.

Importing them does not load torch; only a real run does.
"""

from pdlab.widgets.block import BlockScenario
from pdlab.widgets.block_explorer import BlockExplorer
from pdlab.widgets.scenario import Scenario
from pdlab.widgets.schedule_explorer import ScheduleExplorer
from pdlab.widgets.version_explorer import VersionExplorer
from pdlab.widgets.version_scenario import VersionScenario

__all__ = ["BlockExplorer", "BlockScenario", "Scenario", "ScheduleExplorer", "VersionExplorer", "VersionScenario"]
