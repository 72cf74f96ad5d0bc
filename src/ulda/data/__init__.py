"""Readers of file formats, the canonical domain file, splits by subject, and embedded demo data."""

from ulda.data.demo_data import demo, demo_names
from ulda.data.domain import Domain, Header, Record
from ulda.data.domain_writer import DomainWriter
from ulda.data.importing import ImportOptions, ImportSummary, import_domain
from ulda.data.inspection import Finding, Inspection, inspect
from ulda.data.readers import find_reader
from ulda.data.splits import check_leakage, split_by_subject

__all__ = [
    "Domain",
    "DomainWriter",
    "Finding",
    "Header",
    "ImportOptions",
    "ImportSummary",
    "Inspection",
    "Record",
    "check_leakage",
    "demo",
    "demo_names",
    "find_reader",
    "import_domain",
    "inspect",
    "split_by_subject",
]
