"""Reference pages of options, made from their declarations; tests compare the committed pages with these.

kafscale config --reference >docs/reference/options.md
python -m kafscale.cli.reference >docs/reference/sql-options.md
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from kafscale.cli.sql import command
from kafscale.config.option import Option, options_of
from kafscale.config.settings import Settings, option_classes

_INTRODUCTION = """\
# Options of `kafscale serve`

Made by `kafscale config --reference`; what is changed are the declarations in `kafscale/config/`.

Each option is a flag (`--chunk-pool-bytes 1GiB`), an environment variable (`KAFSCALE_CHUNK_POOL_BYTES=1GiB`) and a key
of the TOML file that `--config` or `KAFSCALE_CONFIG` names (`chunk-pool-bytes = "1GiB"`). A flag beats the environment,
which beats the file; `kafscale config` shows what is in effect and where it came from.

- A size is a number of bytes, or has a unit: KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000).
- A duration has a unit: us, ms, s, m, h, d. Only 0 may go without.
- A repeatable option takes several values with commas between them in all three places. It may also be given several
  times as a flag, and as a list in the file.
- An address may be written as a URL without a path, such as `http://127.0.0.1:9644`, and a listener as in Kafka,
  `SSL://0.0.0.0:9093`.
- An empty environment variable counts as not given. An unknown one that begins with `KAFSCALE_`, or an unknown key,
  is an error. Kubernetes sets such variables in each pod for every Service whose name begins with `kafscale`, such as
  `KAFSCALE_BROKER_PORT_9092_TCP`: these service links are passed over. `enableServiceLinks: false` in the pod's
  specification keeps them out.
- Credentials are not options. The S3 client finds them where every other one does.
"""


def options_page() -> str:
    """The whole page, as Markdown."""
    defaults = Settings()
    sections = ["\n".join([f"## {each.TITLE}\n", *_table(options_of(each), defaults)]) for each in option_classes()]
    return _INTRODUCTION + "\n" + "\n\n".join(sections) + "\n"


def _table(rows: tuple[Option, ...], defaults: Settings) -> Iterator[str]:
    yield "| option | default | allowed | what it does |"
    yield "|---|---|---|---|"
    for each in rows:
        default = each.format(defaults.value(each))
        words = f"{each.help.text} *{each.help.why}*" if each.help.why else each.help.text
        shown_default = f"`{default}`" if default else ""
        yield f"| `{each.flag}` | {shown_default} | {_escape(each.allowed)} | {_escape(words)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


INTRODUCTION = """# Options of kafscale sql

Made from the code by `python -m kafscale.cli.reference`. A flag beats the environment. Options of the store are
those of [`kafscale serve`](options.md), also in the TOML file that `--config` names.
[How to query topics](../how-to/sql.md) shows them at work."""
TITLES = {"query": "kafscale sql [STATEMENT]"}


def reference() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for name, each in command.commands.items():
        rows = "\n".join(_rows(each))
        title = TITLES.get(name, f"kafscale sql {name}")
        parts.append(f"## {title}\n\n| option | variable and default | what it does |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _rows(of: click.Command) -> Iterator[str]:
    for option in of.params:
        if isinstance(option, click.Option) and option.help is not None:
            text, _, details = option.help.partition("  [")
            yield f"| `{option.opts[0]}` | {details.removesuffix(']')} | {text} |".replace("[", "\\[")


if __name__ == "__main__":
    print(reference(), end="")
