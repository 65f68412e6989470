"""Widgets for notebooks: they wire controls to the pure functions of the package and hold no idea of their own.

Importing them does not load torch; only a real run does.
"""

from pdlab.widgets.explorer import ScheduleExplorer
from pdlab.widgets.scenario import Scenario, pipeline_schedules

__all__ = ["Scenario", "ScheduleExplorer", "pipeline_schedules"]
