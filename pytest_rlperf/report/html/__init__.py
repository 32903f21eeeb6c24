"""A run, and the course of tests over commits, as one HTML file that works offline."""

from pytest_rlperf.report.html.history import render_history_page
from pytest_rlperf.report.html.page import check_html, render_html

__all__ = ["check_html", "render_history_page", "render_html"]
