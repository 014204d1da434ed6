"""Sphinx directive `khop-commands`: a section for each command, made from its argparse parser."""

import argparse

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from khop.cli.main import parser_of_all


class Commands(Directive):
    """All commands of `khop` with their usage and options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        parser = parser_of_all()
        (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        sections = [self._section(name, command) for name, command in commands.choices.items()]
        return [*sections, nodes.literal_block(text=parser.epilog, language="none")]

    def _section(self, name: str, command: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(ids=[f"khop-{name}"], names=[f"khop {name}"])
        section += nodes.title(text=f"khop {name}")
        self.state.document.note_implicit_target(section)
        section += nodes.paragraph(text=command.description)
        section += nodes.literal_block(text=command.format_usage().strip(), language="none")
        options = nodes.definition_list()
        for action in command._actions:
            if action.help != argparse.SUPPRESS:
                options += _item(command, action)
        section += options
        if command.epilog:
            section += nodes.literal_block(text=command.epilog.strip(), language="none")
        return section


def _item(command: argparse.ArgumentParser, action: argparse.Action) -> nodes.definition_list_item:
    metavar = action.metavar or (action.option_strings and action.dest.upper()) or action.dest
    if action.choices:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    names = ", ".join(action.option_strings)
    shown = f"{names} {metavar}" if names and action.nargs != 0 else names or str(metavar)
    text = command._get_formatter()._expand_help(action) if action.help else ""
    term = nodes.term("", "", nodes.literal(text=shown))
    definition = nodes.definition("", nodes.paragraph(text=text))
    return nodes.definition_list_item("", term, definition)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("khop-commands", Commands)
    return {"parallel_read_safe": True}
