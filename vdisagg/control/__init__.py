"""The controller: an engine core to the front end, a front end to the engine cores."""
