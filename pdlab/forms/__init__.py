"""How a program is written down: a grid to read, CSV to type, JSON to send, all read off the one list of ops."""

from pdlab.forms.columns import fewest_columns
from pdlab.forms.decode import from_json
from pdlab.forms.encode import to_json
from pdlab.forms.fault import FormError
from pdlab.forms.files import read_text
from pdlab.forms.grid import grid
from pdlab.forms.listing import listing
from pdlab.forms.table import parse_csv, read_table, rows_csv, schedule_csv
from pdlab.forms.typed import Table

__all__ = [
    "FormError",
    "Table",
    "fewest_columns",
    "from_json",
    "grid",
    "listing",
    "parse_csv",
    "read_table",
    "read_text",
    "rows_csv",
    "schedule_csv",
    "to_json",
]
