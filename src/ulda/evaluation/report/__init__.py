"""One HTML file with images, errors, scores and certificates, for anyone to read offline."""

from ulda.evaluation.report.comparison_file import load_comparison, report_of_assessment, save_comparison
from ulda.evaluation.report.content import Report, Slice
from ulda.evaluation.report.page import render, write_report
from ulda.evaluation.report.sources import read_report

__all__ = [
    "Report",
    "Slice",
    "load_comparison",
    "read_report",
    "render",
    "report_of_assessment",
    "save_comparison",
    "write_report",
]
