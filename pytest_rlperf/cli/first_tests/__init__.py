"""First tests of a project: its modules are imported and looked at, tests are drafted, tried, and written.

``search`` finds the modules and starts a process that imports them: ``look``. There, ``envs``, ``objects`` and
``built`` make drafts of what is in them. ``trial`` has pytest run each draft, with a plugin of its own.
"""
