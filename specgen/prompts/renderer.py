"""Rendering, strictly: a variable that nobody gave is an error that names template, line and variable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specgen.errors import SettingsError, SpecGenError
from specgen.prompts.feedback import feedback
from specgen.prompts.profile import profile_rows

SHIPPED = Path(__file__).resolve().parent
SUFFIX = ".md.j2"
TRIMS = 5  # values of ``trim`` in templates: 0 shows all, 4 the least


class Rendered(NamedTuple):
    """A prompt and the sha256 (hex) of the sources it was made from: the template and all it includes."""

    text: str
    template_hash: str


class Renderer:
    """Templates of ``user_dir`` (a path, or none), then the shipped ones. Thread-safe."""

    def __init__(self, user_dir: str | Path | None = None) -> None:
        self._includes: dict[str, list[str]] = {}  # by source: parsing is what costs
        folders = [SHIPPED]
        if user_dir:
            folder = Path(user_dir).expanduser()
            if not folder.is_dir():
                raise SettingsError(f"no prompt directory {str(user_dir)!r}", "prompt_dir is a folder of *.md.j2 files")
            folders.insert(0, folder)
        self._environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folders),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._environment.globals["trim"] = 0
        filters: dict[str, Callable[..., object]] = {
            "block": block,
            "feedback": feedback,
            "profile_rows": profile_rows,
            "head": head,
        }
        self._environment.filters.update(filters)

    def names(self) -> tuple[str, ...]:
        """All templates, sorted."""
        return tuple(name for name in self._environment.list_templates() if name.endswith(SUFFIX))

    def render(self, template: str, /, **variables: object) -> Rendered:
        """The text and its hash. Raises SettingsError: no such template, a syntax error, an unknown variable."""
        with self._explained(template):
            text = self._environment.get_template(template).render(variables)
            return Rendered(text, self.hash_of(template))

    def hash_of(self, template: str) -> str:
        """sha256 over the names and sources of the template and everything it includes, directly or not."""
        digest = hashlib.sha256()
        with self._explained(template):
            for name, source in sorted(self._sources(template, {}).items()):
                digest.update(f"{name}\0{source}\0".encode())
        return digest.hexdigest()

    def _sources(self, template: str, found: dict[str, str]) -> dict[str, str]:
        loader = self._environment.loader
        assert loader is not None, "given above"
        found[template] = loader.get_source(self._environment, template)[0]
        for name in self._included(found[template]):
            if name not in found:
                self._sources(name, found)
        return found

    def _included(self, source: str) -> list[str]:
        if source not in self._includes:
            names = meta.find_referenced_templates(self._environment.parse(source))
            self._includes[source] = [name for name in names if name is not None]  # None: computed while rendering
        return self._includes[source]

    @contextmanager
    def _explained(self, template: str) -> Iterator[None]:
        try:
            yield
        except TemplateNotFound as exc:
            raise SettingsError(
                f"template {template}: no template is called {exc.name!r}", f"there are {', '.join(self.names())}"
            ) from exc
        except TemplateSyntaxError as exc:
            raise SettingsError(f"template {exc.name or template}, line {exc.lineno}: {exc.message}") from exc
        except SpecGenError:
            raise
        except Exception as exc:  # whatever a template's expressions raise is the template's fault
            where = self._where(exc.__traceback__) or template
            raise SettingsError(f"template {where}: {exc}", "see docs/search.md for a template's variables") from exc

    def _where(self, traceback: TracebackType | None) -> str | None:
        """``name, line N`` of the innermost template in a traceback (Jinja puts templates' own lines there)."""
        where = None
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if file.endswith(SUFFIX):
                where = f"{self._short(Path(file))}, line {traceback.tb_lineno}"
            traceback = traceback.tb_next
        return where

    def _short(self, file: Path) -> str:
        loader = self._environment.loader
        assert isinstance(loader, FileSystemLoader), "given above"
        for folder in map(Path, loader.searchpath):
            if file.is_relative_to(folder):
                return file.relative_to(folder).as_posix()
        return str(file)


def head(text: str, chars: int) -> str:
    """The first ``chars`` characters, in whole lines where possible, and how many were left out."""
    if len(text) <= chars:
        return text
    kept = text[:chars].rpartition("\n")[0] or text[:chars]
    return f"{kept}\n[{len(text) - len(kept)} more characters]"


def block(text: str, language: str = "") -> str:
    """A fenced block that ``text`` cannot close by fences of its own."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
