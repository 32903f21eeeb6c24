"""A run as one HTML file that works offline."""

from pytest_rlperf.report.html.page import check_html, render_html

__all__ = ["check_html", "render_html"]
