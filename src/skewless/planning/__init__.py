"""What planners share: key counters (`counters`) and the base class `Planner` (`planner`)."""
