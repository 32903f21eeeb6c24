"""First tests for a project: its modules are imported and inspected, tests are drafted, tried, and written.

``search`` finds the modules and starts a process that imports them: ``look``. There, ``envs``, ``objects`` and
``built`` make drafts for what is in them. ``trial`` runs each draft by pytest, with its own plugin.
"""
