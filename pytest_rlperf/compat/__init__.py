"""Drop-in modules: the names of other libraries' timers, with figures that hold."""
