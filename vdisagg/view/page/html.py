"""Elements of HTML out of words: all text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def element(tag: str, *content: str, **attributes: str) -> str:
    """`content` is HTML already; attributes are words (`class_` for class, `_` for a hyphen)."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(content)}</{tag}>"


def words(text: str) -> str:
    """Text as HTML."""
    return escape(text, quote=False)


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """Words as cells; the first of each row is its heading. Empty where there are no rows.

    `numbers`: cells beside the first stand to the right. A row that is shorter than the head has a last
    cell that stands for all the rest.
    """
    if not rows:
        return ""
    headings = "".join(element("th", words(cell), scope="col") for cell in head)
    body = "".join(_row(row, len(head)) for row in rows)
    return element(
        "div",
        element(
            "table",
            element("caption", words(caption)),
            element("thead", element("tr", headings)),
            element("tbody", body),
            class_="numbers" if numbers else "texts",
        ),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption,
    )


def _row(row: Sequence[str], width: int) -> str:
    first, *cells = row
    found = element("th", words(first), scope="row")
    for number, cell in enumerate(cells, 2):
        rest = width - number + 1 if number == len(row) else 1
        more = {"colspan": str(rest)} if rest > 1 else {}
        found += element("td", words(cell), **more)
    return element("tr", found)
