"""The operators of the installed torch, as declarations for the façade.

Read once from the generated headers under ``ATen/ops`` (regular by construction): every overload with its C++
signature and its name in the dispatcher. For a candidate only those whose names occur in its source are written out,
so the whole of ATen is on offer and none of it costs compile time. Not here: compiling.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

_FUNCTION = re.compile(
    r"^inline (?P<result>[^\n(]+?) (?P<name>\w+)\((?P<params>[^\n]*)\) \{\n"
    r"    (?:return )?at::_ops::(?P<op>\w+)::call\((?P<args>[^\n]*)\);\n\}",
    re.MULTILINE,
)
_METHOD = re.compile(
    r"^inline (?P<result>[^\n(]+?) Tensor::(?P<name>\w+)\((?P<params>[^\n]*)\) const \{\n"
    r"    (?:return )?at::_ops::(?P<op>\w+)::call\((?P<args>[^\n]*)\);\n\}",
    re.MULTILINE,
)
_DECLARED = re.compile(r"^  (?P<result>[^\n(;]+?) (?P<name>\w+)\((?P<params>[^\n]*)\) const;$", re.MULTILINE)
_FACTORY = re.compile(
    r"^inline at::Tensor (?P<name>\w+)\((?P<params>[^\n]*)\) \{\n"
    r"  at::AutoDispatchBelowADInplaceOrView guard;\n"
    r"  return (?P<body>autograd::make_variable\([^\n]*\));\n\}",
    re.MULTILINE,
)
_OPERATOR = re.compile(
    r"struct TORCH_API (?P<op>\w+) \{.*?\bname = \"aten::(?P<name>\w+)\";.*?\boverload_name = \"(?P<overload>\w*)\";",
    re.DOTALL,
)
# What the façade's `Argument` takes and `Result` gives; an overload with anything else is not offered.
_ELEMENT = (
    r"(?:at::Tensor|at::Scalar|int64_t|double|bool|at::ScalarType|at::Layout|at::Device|at::MemoryFormat"
    r"|c10::string_view|::std::string_view|at::IntArrayRef|at::TensorList|at::ArrayRef<double>)"
)
_PARAM = re.compile(
    rf"(?:(?:const )?(?:{_ELEMENT}|::std::optional<{_ELEMENT}>|at::OptionalIntArrayRef|at::ITensorListRef"
    r"|::std::array<bool,\d+>)(?: ?&)?|at::TensorOptions)"
)
_ONE = r"(?:at::Tensor|::std::vector<at::Tensor>|bool|int64_t|double|at::Scalar|at::ScalarType)"
_RESULT = re.compile(rf"(?:void|{_ONE}|::std::tuple<{_ONE}(?:,{_ONE})*>|(?:const )?at::Tensor &)")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Overloads:
    """Index by C++ name: declarations, definitions and functions, ready to be written out."""

    method_declarations: dict[str, list[str]]
    method_definitions: dict[str, list[str]]
    functions: dict[str, list[str]]
    factories: dict[str, list[str]]  # of namespace torch, with requires_grad

    def as_json(self) -> dict[str, dict[str, list[str]]]:
        """For the file beside the support library."""
        return asdict(self)

    def includes(self, source: str) -> dict[str, str]:
        """The three generated headers for a source: file name -> text."""
        words = sorted(set(_WORD.findall(source)))

        def lines(index: dict[str, list[str]]) -> str:
            return "".join(f"{text}\n" for word in words for text in index.get(word, ()))

        methods = (
            f"#ifdef SPECGEN_DECLARE_METHODS\n{lines(self.method_declarations)}#endif\n"
            f"#ifdef SPECGEN_DEFINE_METHODS\n{lines(self.method_definitions)}#endif\n"
        )
        # A factory calls the function of the same name in namespace at.
        return {
            "specgen_methods.inc": methods,
            "specgen_functions.inc": lines(self.functions),
            "specgen_factories.inc": lines(self.factories),
        }


def read_overloads(torch_include: Path) -> Overloads:
    """Parse the headers below ``torch_include`` (torch's own include directory); about a second."""
    names = _operator_names(torch_include / "ATen" / "ops")
    functions: dict[str, list[str]] = {}
    for header in sorted((torch_include / "ATen" / "ops").glob("*.h")):
        if header.stem.endswith(("_ops", "_native", "_dispatch")):
            continue
        for match in _FUNCTION.finditer(header.read_text()):
            body = _body(match, names)
            if body:
                text = f"inline {match['result']} {match['name']}({match['params']}) {{ {body} }}"
                functions.setdefault(match["name"], []).append(text)
    declarations, definitions = _methods((torch_include / "ATen/core/TensorBody.h").read_text(), names)
    factories = _factories(torch_include / "torch/csrc/autograd/generated/variable_factories.h", functions)
    return Overloads(declarations, definitions, functions, factories)


def _operator_names(ops: Path) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for header in ops.glob("*_ops.h"):
        for match in _OPERATOR.finditer(header.read_text()):
            found[match["op"]] = (match["name"], match["overload"])
    return found


def _methods(body: str, names: dict[str, tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    declared = {
        (m["name"], _bare(m["params"])): f"{m['result']} {m['name']}({m['params']}) const;"
        for m in _DECLARED.finditer(body)
    }
    declarations: dict[str, list[str]] = {}
    definitions: dict[str, list[str]] = {}
    for match in _METHOD.finditer(body):
        declaration = declared.get((match["name"], _bare(match["params"])))
        code = _body(match, names)
        if declaration and code:
            declarations.setdefault(match["name"], []).append(declaration)
            text = f"inline {match['result']} Tensor::{match['name']}({match['params']}) const {{ {code} }}"
            definitions.setdefault(match["name"], []).append(text)
    return declarations, definitions


def _factories(header: Path, functions: dict[str, list[str]]) -> dict[str, list[str]]:
    factories: dict[str, list[str]] = {}
    for match in _FACTORY.finditer(header.read_text()):
        if match["name"] in functions and all(_PARAM.fullmatch(kind) for kind in _kinds(match["params"])):
            text = f"inline at::Tensor {match['name']}({match['params']}) {{ return {match['body']}; }}"
            factories.setdefault(match["name"], []).append(text)
    return factories


def _body(match: re.Match[str], names: dict[str, tuple[str, str]]) -> str:
    """The façade's body of an overload, or nothing where a type of it is not known there."""
    result = match["result"]
    if match["op"] not in names or not _RESULT.fullmatch(result):
        return ""
    if not all(_PARAM.fullmatch(kind) for kind in _kinds(match["params"])):
        return ""
    name, overload = names[match["op"]]
    op = f'SPECGEN_OPERATOR("{name}", "{overload}")'
    args = [_expression(arg) for arg in _split(match["args"])]
    arguments = "".join(f", {arg}" for arg in args)
    if result.endswith("&"):
        target = _target(match, args, const=result.startswith("const"))
        return f"return ::specgen::invoke_into({target}, {op}{arguments});" if target else ""
    return f"return ::specgen::invoke<{result}>({op}{arguments});"


def _target(match: re.Match[str], args: list[str], *, const: bool) -> str:
    """The argument that the operator writes into and returns: `self` of a method, else the one non-const reference."""
    if "Tensor::" in match[0].split("(", 1)[0]:
        return "*this" if const else "const_cast<Tensor&>(*this)"
    wanted = "const at::Tensor &" if const else "at::Tensor &"
    fitting = [_name(p) for p in _split(match["params"]) if _kind(p) == wanted]
    return fitting[0] if fitting and (const or len(fitting) == 1) and fitting[0] in args else ""


def _expression(arg: str) -> str:
    """Integers are integers here: drop the conversions to symbolic ones."""
    arg = re.sub(r"^(\w+)\.has_value\(\) \? .* : ::std::nullopt$", r"\1", arg)
    return re.sub(r"^c10::fromIntArrayRefSlow\((\w+)\)$", r"\1", arg)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "(<{") - (char in ")>}")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _name(param: str) -> str:
    return param.split("=")[0].split()[-1]


def _kind(param: str) -> str:
    return param.split("=")[0].strip().rsplit(" ", 1)[0].strip()


def _kinds(params: str) -> list[str]:
    return [_kind(param) for param in _split(params)]


def _bare(params: str) -> str:
    """The parameters without default values."""
    return ", ".join(param.split("=")[0].strip() for param in _split(params))
