"""Parse where clauses into an untyped syntax tree.

Operators bind as PostgreSQL's do, from loosest to tightest:

    OR, AND, NOT, IS, comparisons, BETWEEN/IN/LIKE, other operators, + -, * /, ^, AT TIME ZONE, signs, ::

1. Everything else is refused with its position: sub-selects, rows, CASE, COLLATE, subscripts, wildcards.
2. Comparisons, BETWEEN, IN and LIKE cannot be chained without parentheses.
3. A chain of ANDs or ORs is one node, however long. Otherwise a tree is at most `DEPTH_MAX` deep, which also limits the
   parser's recursion: no clause overflows the stack, here or in code that walks the tree later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from evertide.pgexpr.tokens import SqlToken, refuse, shorten, tokenize_clause
from evertide.pgexpr.types.sqltypes import TYPE_NAMES, SqlType

DEPTH_MAX: Final = 50

_OR, _AND, _NOT, _IS, _COMPARISON, _RANGE, _OTHER, _SUM, _PRODUCT, _POWER, _ZONE, _SIGN, _CAST = range(1, 14)
_COMPARISONS = ("=", "<>", "!=", "<", ">", "<=", ">=")
_POWERS = {
    **dict.fromkeys(_COMPARISONS, _COMPARISON),
    **dict.fromkeys(("||", "&", "|", "#", "@>", "<@", "&&", "~~", "~~*", "!~~", "!~~*"), _OTHER),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/"), _PRODUCT),
    "^": _POWER,
    "::": _CAST,
}
_PREFIXES = ("@", "|/", "~")
_WORDS = {"or": _OR, "and": _AND, "is": _IS, "between": _RANGE, "in": _RANGE, "like": _RANGE, "ilike": _RANGE}
_LIKE_OPERATORS = {"~~": "like", "~~*": "ilike", "!~~": "like", "!~~*": "ilike"}
_SESSION_VALUES = {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    *("current_user", "current_role", "current_catalog", "current_schema", "session_user", "user"),
}
_VOLATILE = {
    *("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "random", "nextval"),
    *("gen_random_uuid", "uuid_generate_v4", "count", "sum", "min", "max", "avg"),
}
_SUBSELECT = "sub-selects are not supported"
_RESERVED = {
    **dict.fromkeys(("select", "with", "exists", "values", "table"), _SUBSELECT),
    **dict.fromkeys(("case", "when", "then", "else", "end"), "CASE is not supported"),
    **dict.fromkeys(("row", "collate", "similar", "overlaps", "isnull", "notnull", "union"), "not supported"),
    **dict.fromkeys(_SESSION_VALUES, "its value changes with time, and a clause must depend on the row alone"),
    **dict.fromkeys(
        (*_WORDS, *("any", "all", "some", "as", "from", "where", "distinct", "symmetric", "asymmetric", "cast", "not")),
        "expected a value here; write a column of that name in double quotes",
    ),
}


@dataclass(frozen=True, slots=True)
class TypeName:
    type: SqlType
    """For `uuid`, which no column has, a type of that name."""
    modifiers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SyntaxNode:
    """`form` is the kind of node, `token` its text in the clause, `facts` what else the form needs."""

    form: str
    at: int
    token: str
    args: tuple[SyntaxNode, ...] = ()
    facts: Any = None
    depth: int = field(default=1, compare=False)


def parse_clause(text: str, *, name_quote: str = '"') -> SyntaxNode:
    """`name_quote` is the character around quoted names: Spark's is a backtick."""
    return _Parser(tokenize_clause(text, name_quote)).parse()


class _Parser:
    def __init__(self, tokens: list[SqlToken]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> SyntaxNode:
        if self._peek().kind == "end":
            refuse(0, "the clause is empty")
        node = self._parse_expression(_OR)
        if self._peek().kind != "end":
            self._refuse_next("unexpected text after the clause")
        return node

    # Tokens

    def _peek(self, ahead: int = 0) -> SqlToken:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> SqlToken:
        token = self._peek()
        self._next += 1
        return token

    def _is_next(self, *texts: str) -> bool:
        """Whether these words, marks or operators come next, in this order."""
        for ahead, text in enumerate(texts):
            token = self._peek(ahead)
            if token.text != text or token.kind not in ("name", "mark", "operator"):
                return False
        return True

    def _skip_if_next(self, *texts: str) -> bool:
        is_there = self._is_next(*texts)
        self._next += len(texts) if is_there else 0
        return is_there

    def _expect(self, text: str, for_what: str) -> None:
        if not self._skip_if_next(text):
            self._refuse_next(f"expected {text!r}, {for_what}")

    def _refuse_next(self, why: str) -> NoReturn:
        token = self._peek()
        refuse(token.at, f"{token.shown if token.kind == 'end' else shorten(token.shown)}: {why}")

    def _make_node(self, form: str, token: SqlToken, *args: SyntaxNode, facts: Any = None) -> SyntaxNode:
        depth = 1 + max((arg.depth for arg in args), default=0)
        if depth > DEPTH_MAX:
            self._refuse_depth(token)
        return SyntaxNode(form, token.at, token.shown, args, facts, depth)

    def _refuse_depth(self, token: SqlToken) -> NoReturn:
        refuse(token.at, f"{shorten(token.shown)}: the clause is nested more than {DEPTH_MAX} deep")

    # Expressions

    def _parse_expression(self, least: int) -> SyntaxNode:
        """Parse an expression whose operators bind at least as tightly as `least`."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse_depth(self._peek())
        left, last = self._parse_operand(least), 0
        while (power := self._find_power()) >= least:
            if power == last and power in (_COMPARISON, _RANGE):
                self._refuse_next("use parentheses between two operators of this kind")
            left, last = self._parse_operator(left, power), power
        self._depth -= 1
        return left

    def _find_power(self) -> int:
        token = self._peek()
        if token.kind == "name":
            if token.text == "not":
                return _RANGE if self._peek(1).text in ("in", "like", "ilike", "between", "similar") else 0
            return _ZONE if self._is_next("at", "time", "zone") else _WORDS.get(token.text, 0)
        if token.kind == "operator" and token.text not in _POWERS:
            self._refuse_next("this operator is not supported")
        return _POWERS.get(token.text, 0) if token.kind in ("operator", "mark") else 0

    def _parse_operator(self, left: SyntaxNode, power: int) -> SyntaxNode:  # noqa: PLR0911 - one for each kind of operator
        if power in (_OR, _AND):
            return self._parse_logic(left, power)
        if power == _IS:
            return self._parse_test(left)
        if power == _CAST:
            token = self._take()
            return self._make_node("cast", token, left, facts=self._parse_type_name())
        if power == _RANGE:
            return self._parse_range(left)
        token = self._take()
        if power == _ZONE:
            self._next += 2
            return self._make_node("call", token, self._parse_expression(_SIGN), left, facts="timezone")
        if self._is_next("any", "(") or self._is_next("some", "(") or self._is_next("all", "("):
            return self._parse_quantified(left, token)
        return self._make_binary(token, left, self._parse_expression(power + 1))

    def _make_binary(self, token: SqlToken, left: SyntaxNode, right: SyntaxNode) -> SyntaxNode:
        if token.text in _LIKE_OPERATORS:
            like = self._make_node(_LIKE_OPERATORS[token.text], token, left, right)
            return self._make_node("not", token, like) if token.text.startswith("!") else like
        return self._make_node("binary", token, left, right, facts="<>" if token.text == "!=" else token.text)

    def _parse_logic(self, left: SyntaxNode, power: int) -> SyntaxNode:
        token, word = self._peek(), self._peek().text
        args = [left]
        while self._skip_if_next(word):
            args.append(self._parse_expression(power + 1))
        return self._make_node(word, token, *args)

    def _parse_test(self, left: SyntaxNode) -> SyntaxNode:
        token = self._take()
        negated = self._skip_if_next("not")
        if self._skip_if_next("distinct", "from"):
            node = self._make_node("distinct", token, left, self._parse_expression(_COMPARISON))
        else:
            word = self._take()
            if word.kind != "name" or word.text not in ("null", "true", "false", "unknown"):
                refuse(word.at, f"{shorten(word.shown)}: IS is followed by NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
            node = self._make_node("is", token, left, facts=word.text)
        return self._make_node("not", token, node) if negated else node

    def _parse_range(self, left: SyntaxNode) -> SyntaxNode:
        negated = self._skip_if_next("not")
        token = self._take()
        if token.text == "in":
            node = self._parse_in(left, token)
        elif token.text == "between":
            symmetric = self._skip_if_next("symmetric")
            if not symmetric:
                self._skip_if_next("asymmetric")
            low = self._parse_expression(_OTHER)
            self._expect("and", "between the ends of BETWEEN")
            node = self._make_node("between", token, left, low, self._parse_expression(_OTHER), facts=symmetric)
        elif token.text == "similar":
            refuse(token.at, f"{shorten(token.shown)}: not supported")
        elif self._is_next("any", "(") or self._is_next("some", "(") or self._is_next("all", "("):
            node = self._parse_quantified(left, token, negated=negated)
            negated = False
        else:
            args = [left, self._parse_expression(_OTHER)]
            if self._skip_if_next("escape"):
                args.append(self._parse_expression(_OTHER))
            node = self._make_node(token.text, token, *args)
        return self._make_node("not", token, node) if negated else node

    def _parse_in(self, left: SyntaxNode, token: SqlToken) -> SyntaxNode:
        self._expect("(", "as IN is followed by a list of values in parentheses")
        return self._make_node("in", token, left, *self._parse_list(")"))

    def _parse_quantified(self, left: SyntaxNode, token: SqlToken, *, negated: bool = False) -> SyntaxNode:
        every = self._take().text == "all"
        self._take()
        array = self._parse_expression(_OR)
        self._expect(")", "after the array")
        name = f"!{token.text}" if negated else token.text
        return self._make_node("quantified", token, left, array, facts=(name, every))

    def _parse_list(self, end: str) -> list[SyntaxNode]:
        items = [self._parse_expression(_OR)]
        while self._skip_if_next(","):
            items.append(self._parse_expression(_OR))
        self._expect(end, "at the end of the list")
        return items

    # Operands

    def _parse_operand(self, least: int) -> SyntaxNode:  # noqa: PLR0911 - one for each kind of token
        token = self._take()
        if token.kind == "operator":
            return self._parse_prefix(token)
        if token.kind in ("string", "number"):
            return self._make_node(token.kind, token, facts=token.text)
        if token.kind == "param":
            return self._make_node("param", token, facts=int(token.text[1:]))
        if token.kind == "quoted":
            return self._parse_column(token)
        if token.kind == "name":
            return self._parse_name(token, least)
        if token.text == "(":
            node = self._parse_expression(_OR)
            if self._is_next(","):
                self._refuse_next("rows of several values are not supported")
            self._expect(")", "as a parenthesis is open")
            return node
        self._next -= 1
        return self._refuse_next("expected a value here")

    def _parse_prefix(self, token: SqlToken) -> SyntaxNode:
        if token.text in ("+", "-"):
            return self._make_node("sign", token, self._parse_expression(_SIGN), facts=token.text)
        if token.text not in _PREFIXES:
            refuse(token.at, f"{shorten(token.shown)}: expected a value here")
        return self._make_node("unary", token, self._parse_expression(_SUM), facts=token.text)

    def _parse_name(self, token: SqlToken, least: int) -> SyntaxNode:
        word = token.text
        if word == "not" and least <= _NOT:
            return self._make_node("not", token, self._parse_expression(_NOT))
        if word in ("true", "false", "null"):
            return self._make_node("constant", token, facts={"true": True, "false": False}.get(word))
        if word == "cast" and self._skip_if_next("("):
            node = self._parse_expression(_OR)
            self._expect("as", "in CAST")
            cast = self._make_node("cast", token, node, facts=self._parse_type_name())
            self._expect(")", "at the end of CAST")
            return cast
        if word == "array" and self._is_next("["):
            return self._parse_array(token)
        if word in _RESERVED and not (word in ("like", "ilike") and self._is_next("(")):
            refuse(token.at, f"{shorten(token.shown)}: {_RESERVED[word]}")
        typed = self._parse_typed_literal(token)
        if typed is not None:
            return typed
        return self._parse_call(token) if self._is_next("(") else self._parse_column(token)

    def _parse_column(self, token: SqlToken) -> SyntaxNode:
        if self._is_next(".") or self._is_next("["):
            self._refuse_next("write columns without their table; parts of values are not supported")
        if self._is_next("("):
            self._refuse_next("write functions without double quotes")
        return self._make_node("column", token, facts=(token.text, token.kind == "quoted"))

    def _parse_call(self, token: SqlToken) -> SyntaxNode:
        if token.text in _VOLATILE:
            why = "a clause must depend on a single row alone"
            refuse(token.at, f"{shorten(token.shown)}: {why}")
        self._take()
        args = [] if self._skip_if_next(")") else self._parse_list(")")
        return self._make_node("call", token, *args, facts=token.text)

    def _parse_array(self, token: SqlToken) -> SyntaxNode:
        """`ARRAY[...]`; nested arrays may omit the word ARRAY."""
        self._take()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse_depth(token)
        items: list[SyntaxNode] = []
        while not self._skip_if_next("]"):
            if items:
                self._expect(",", "between the elements of an array")
            items.append(self._parse_array(self._peek()) if self._is_next("[") else self._parse_expression(_OR))
        self._depth -= 1
        return self._make_node("array", token, *items)

    # Types

    def _parse_typed_literal(self, token: SqlToken) -> SyntaxNode | None:
        """A literal such as `DATE '2026-01-31'`; None if the name is not followed by a string (it may be a column)."""
        start = self._next
        self._next -= 1
        sql_type = self._parse_simple_type()
        if sql_type is None or self._peek().kind != "string":
            self._next = start
            return None
        literal = self._take()
        return self._make_node(
            "cast", token, self._make_node("string", literal, facts=literal.text), facts=TypeName(sql_type)
        )

    def _parse_simple_type(self) -> SqlType | None:
        """The longest type name that comes next."""
        for count in (4, 3, 2, 1):
            following = [self._peek(at) for at in range(count)]
            name = " ".join(token.text for token in following)
            if all(token.kind == "name" for token in following) and (name in TYPE_NAMES or name == "uuid"):
                self._next += count
                return TYPE_NAMES.get(name) or SqlType("uuid")
        return None

    def _parse_type_name(self) -> TypeName:
        token = self._peek()
        sql_type = self._parse_simple_type()
        if sql_type is None:
            self._refuse_next("this type is not supported")
        modifiers: list[int] = []
        if self._skip_if_next("("):
            modifiers = [self._parse_modifier()]
            while self._skip_if_next(","):
                modifiers.append(self._parse_modifier())
            self._expect(")", "after the size of a type")
            if sql_type.name != "numeric" or len(modifiers) > 2 or not 1 <= modifiers[0] <= 1000 >= modifiers[-1]:
                refuse(token.at, f"{shorten(token.shown)}: only numeric can have a size, such as numeric(10, 2)")
        while self._skip_if_next("["):
            self._expect("]", "as in int[]")
            sql_type = sql_type.array
        return TypeName(sql_type, tuple(modifiers))

    def _parse_modifier(self) -> int:
        token = self._take()
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 4:
            refuse(token.at, f"{shorten(token.shown)}: expected a small whole number")
        return int(token.text)
