"""Command lines and options that README and pages show exist.

Each `khop ...` of a shell block is parsed by the command's own parser; of `khop ...` within a
sentence, command, options and choices count. Options by themselves belong to some command of khop,
to a program of this repository, or to the program that `OTHERS` names.
"""

import argparse
import functools
import itertools
import re
import shlex
from pathlib import Path

import pytest

from khop.cli.main import parser_of_all

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = {"bash", "sh", "shell", "console", "yaml"}
OTHERS = {
    "--cpus-per-task": "srun",
    "--distribution": "srun",
    "--gpus": "docker",
    "--kill-on-bad-exit": "srun",
    "--master-addr": "torchrun",
    "--master-port": "torchrun",
    "--max-restarts": "torchrun",
    "--num_samplers": "DistDGL's launch.py",
    "--num_servers": "DistDGL's launch.py",
    "--rdzv-conf": "torchrun",
    "--shm-size": "docker",
}
PROGRAMS = ("benchmarks", "examples", "scripts", "tests/bench", "tests/scripts", "tests/soak")


@functools.cache
def parser():
    return parser_of_all()


@functools.cache
def commands():
    """{command: its parser}."""
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def shown(text):
    """Yields (line, command line or option, whether it is whole) of a page.

    None in place of the last: its block has no language.
    """
    fence, language, lines = None, "", []
    prose = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|:{3,})\s*\{?([\w+-]*)", line)
        if fence is None and mark and mark[1][0] == "`":
            fence, language, lines = mark[1], mark[2], []
        elif fence is not None and line.strip() == fence:
            yield from of_block(language, lines)
            fence = None
        elif fence is not None:
            lines.append((number, line))
            prose.append("")
            continue
        prose.append("" if mark else line)
    for paragraph in re.finditer(r"(?:.+\n?)+", "\n".join(prose)):
        for code in re.finditer(r"`([^`]+)`", paragraph[0]):
            words = " ".join(code[1].split())
            if re.match(r"(khop |--[a-z])", words):
                before = "\n".join(prose)[: paragraph.start() + code.start()]
                yield before.count("\n") + 1, words, False


def of_block(language, lines):
    """Commands of a block; a backslash at the end of a line goes on in the next.

    Those of a container's shell, in a manifest, count as well.
    """
    joined, start = "", 0
    for number, line in lines:
        start = start if joined else number
        joined += line.removeprefix("$ ")
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        begins = re.match(r"\s*(?:exec )?(\S*/khop|khop|\S*python3? -m khop) ", joined)
        if begins and language in SHELLS:
            yield start, f"khop {joined[begins.end() :]}", True
        elif begins and language == "":
            yield start, joined, None
        elif language in SHELLS - {"yaml"}:
            yield start, joined, False
        joined = ""


def problem(line, whole):
    """What is wrong with a command line or option; None if nothing is."""
    if whole is None:
        return "its block says neither bash nor text: mark it"
    words = shlex.split(line, comments=True)
    if words[:1] == ["khop"]:
        return problem_of_khop(words[1:], whole and "..." not in words)
    if words and words[0].startswith("--"):
        return None if is_known(words[0].partition("=")[0]) else "no program has this option"
    return problem_of_program(words)


def problem_of_khop(words, whole):
    command = commands().get(words[0], parser() if words[0].startswith("-") else None)
    if command is None:
        return f"no such command '{words[0]}'"
    own = list(itertools.takewhile(lambda word: word != "--", words))  # after it: another command
    for option, value in zip(own, [*own[1:], None], strict=True):
        name, _, given = option.partition("=")
        action = command._option_string_actions.get(name)
        if name.startswith("--") and action is None:
            return f"no such option '{name}'"
        given = given or value
        if action is not None and action.choices and given and given not in action.choices:
            return f"'{given}' is none of {list(action.choices)}"
    if whole:
        try:
            parser().parse_args([re.sub(r"\$\w+", "0", word) for word in words])
        except SystemExit as error:
            return f"cannot be parsed ({error.code})" if error.code else None
    return None


def problem_of_program(words):
    """Of lines that run a program of this repository."""
    for number, program in enumerate(words):
        if not re.match(r"(benchmarks|examples|scripts)/", program):
            continue
        file = ROOT / program
        if not file.is_file():
            return f"no file '{program}'"
        for word in words[number + 1 :]:  # those before it are its launcher's
            if word.startswith("--") and word.partition("=")[0] not in text_of(file):
                return f"'{file.name}' has no option {word}"
    return None


def text_of(program):
    """The program, and the modules beside it that it imports from."""
    text = program.read_text()
    beside = [
        program.parent / f"{name}.py" for name in re.findall(r"^from (\w+) import", text, re.M)
    ]
    return "\n".join([text, *(file.read_text() for file in beside if file.is_file())])


def is_known(option):
    return option in OTHERS or option in options_of_khop() or option in options_of_programs()


@functools.cache
def options_of_khop():
    return {name for command in commands().values() for name in command._option_string_actions}


@functools.cache
def options_of_programs():
    """Options that texts of programs name in quotes."""
    texts = [
        file.read_text()
        for folder in PROGRAMS
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", "") and file.is_file()
    ]
    return {name for text in texts for name in re.findall(r"[\"'(\s](--[a-z][\w-]*)", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_exists(page):
    problems = [
        f"{page.relative_to(ROOT)}:{number}: {line}: {found}"
        for number, line, whole in shown(page.read_text())
        if (found := problem(line, whole))
    ]
    assert not problems, "\n".join(problems)


def test_pages_show_commands():
    """The search finds what it is for, and options of other programs are still shown."""
    lines = [line for page in PAGES for _, line, _ in shown(page.read_text())]
    assert {"partition", "serve", "keygen", "top"} <= {
        line.split()[1] for line in lines if line.startswith("khop ")
    }
    bare = {re.split("[ =]", line)[0] for line in lines if line.startswith("--")}
    assert set(OTHERS) - bare == set()


@pytest.mark.parametrize(
    ("page", "line", "words"),
    [
        ("# A\n\n```bash\nkhop verfy parts\n```\n", 4, "no such command 'verfy'"),
        ("```bash\nkhop serve a \\\n  --masster b:1\n```\n", 2, "no such option '--masster'"),
        ("```bash\nls\nkhop partition a b\n```\n", 3, "cannot be parsed"),
        ("Run\n`khop partition a b --edge-dir\nup`.\n", 2, "'up' is none of"),
        ("With `--num-prats 2`.\n", 1, "no program has this option"),
        ("```\nkhop verify parts\n```\n", 2, "neither bash nor text"),
        (
            "```yaml\n- |\n  exec khop serve a \\\n    --rnak $R\n```\n",
            3,
            "no such option '--rnak'",
        ),
        ("```bash\npython benchmarks/gone.py\n```\n", 2, "no file 'benchmarks/gone.py'"),
        ("```bash\npython benchmarks/run.py --no-such 1\n```\n", 2, "has no option --no-such"),
    ],
)
def test_what_does_not_exist_is_found(page, line, words):
    ((number, text, whole),) = [
        entry for entry in shown(page) if problem(entry[1], entry[2]) is not None
    ]
    assert number == line
    assert words in problem(text, whole)
