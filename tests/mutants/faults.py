"""All faults. A fault's number is its position, from 1."""

from mutants.of_exchange import OF_EXCHANGE
from mutants.of_findings import OF_FINDINGS
from mutants.of_groups import OF_GROUPS
from mutants.of_links import OF_LINKS
from mutants.of_memory import OF_MEMORY
from mutants.of_padding import OF_PADDING
from mutants.of_programs import OF_PROGRAMS
from mutants.of_reviews import OF_REVIEWS
from mutants.of_steps import OF_STEPS

FAULTS = [
    *OF_REVIEWS,
    *OF_FINDINGS,
    *OF_MEMORY,
    *OF_STEPS,
    *OF_GROUPS,
    *OF_PADDING,
    *OF_EXCHANGE,
    *OF_PROGRAMS,
    *OF_LINKS,
]
