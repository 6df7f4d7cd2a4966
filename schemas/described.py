"""What the classes of `schemas.events` and `schemas.values` say about themselves, for documents.

A member's description is the string literal that follows it in the source; `typing` and `msgspec` drop it, so it is
read from the source.
"""

import ast
import inspect
import textwrap
import types
import typing
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of an event or value. `default` is JSON, None where the member is required."""

    name: str
    type: str
    default: str | None
    description: str


def summary(cls: type) -> str:
    """The class's docstring as one paragraph a line."""
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def members(cls: type[msgspec.Struct]) -> tuple[Member, ...]:
    """The members in the order of the record."""
    described = descriptions(cls)
    return tuple(
        Member(
            name=field.encode_name,
            type=written(field.type),
            default=None if field.required else msgspec.json.encode(_default(field)).decode(),
            description=described.get(field.name, ""),
        )
        for field in msgspec.structs.fields(cls)
    )


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def values_of(cls: type[msgspec.Struct]) -> tuple[type[msgspec.Struct], ...]:
    """The value classes that the members of a class are made of."""
    found: dict[type[msgspec.Struct], None] = {}
    for field in msgspec.structs.fields(cls):
        for part in (field.type, *_flat(field.type)):
            if inspect.isclass(part) and issubclass(part, msgspec.Struct):
                found[part] = None
    return tuple(found)


def written(kind: Any) -> str:
    """A type as a reader of JSON thinks of it: `integer`, `"free" | "paid"`, `list of Notice`."""
    origin = get_origin(kind)
    if origin is Annotated:
        return written(get_args(kind)[0])
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in get_args(kind))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(written(part) for part in get_args(kind))
    if origin is tuple:
        return f"list of {written(get_args(kind)[0])}"
    if origin is dict:
        return f"object of {written(get_args(kind)[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return names.get(kind) or str(kind.__name__)


def descriptions(cls: type) -> dict[str, str]:
    """The members' descriptions, by name, of those that the class itself declares."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"{cls} is not written as a class")
    found: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def _flat(kind: Any) -> tuple[Any, ...]:
    parts: tuple[Any, ...] = ()
    for part in get_args(kind):
        parts += (part, *_flat(part))
    return parts
