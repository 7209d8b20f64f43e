"""Judging an answer by the task's rule. Answers are token ids turned to text with the special marks spelled out."""

import ast
import json
import re

SECTION = re.compile(r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.S)
CALL = re.compile(r"<\|tool_call_begin\|>functions\.([\w.-]+):(\d+)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.S)


def parse_calls(text: str) -> list[tuple[str, dict]] | None:
    """Names and arguments, or None when there is no well-formed section of calls with JSON objects."""
    section = SECTION.fullmatch(text.strip())
    if not section:
        return None
    found, rest = [], section.group(1)
    for match in CALL.finditer(rest):
        try:
            arguments = json.loads(match.group(3))
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        found.append((match.group(1), arguments))
    return found if found and not CALL.sub("", rest).strip() else None


_TYPES = {"string": str, "integer": int, "boolean": bool}


def valid_calls(text: str, tools: list[dict]) -> bool:
    """Every call parses, names a declared tool and satisfies its schema."""
    made = parse_calls(text)
    if made is None:
        return False
    declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, arguments in made:
        schema = declared.get(name)
        if schema is None or any(needed not in arguments for needed in schema["required"]):
            return False
        for key, value in arguments.items():
            rule = schema["properties"].get(key)
            if rule is None or not isinstance(value, _TYPES[rule["type"]]):
                return False
            if isinstance(value, bool) != (rule["type"] == "boolean") or ("enum" in rule and value not in rule["enum"]):
                return False
    return True


def number(text: str, answer: int) -> bool:
    found = re.findall(r"The answer is (-?\d+)\.", text)
    return bool(found) and int(found[-1]) == answer


def trace(text: str, answer: str) -> bool:
    found = re.findall(r"It prints (-?\w+)\.", text)
    return bool(found) and found[-1] == answer


def calls(text: str, answer: list) -> bool:
    made = parse_calls(text)
    if made is None or len(made) != len(answer):
        return False
    left = [(name, arguments) for name, arguments in answer]
    for call in made:
        if call not in left:
            return False
        left.remove(call)
    return True


_ALLOWED = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.If, ast.Expr, ast.BinOp, ast.Compare, ast.BoolOp,
    ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Store, ast.Constant, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp,
    ast.comprehension, ast.Subscript, ast.Slice, ast.IfExp, ast.operator, ast.cmpop, ast.unaryop, ast.boolop,
)
_BUILTINS = {"sum": sum, "max": max, "min": min, "len": len, "abs": abs, "sorted": sorted}


def code(text: str, tests: list[str]) -> bool:
    """Runs the function against its tests when it is built of harmless parts only: no loop but a comprehension, no
    attribute, no power, no recursion, no name from outside."""
    match = re.search(r"```python\n(.*?)```", text, re.S)
    if not match or len(match.group(1)) > 600:
        return False
    try:
        tree = ast.parse(match.group(1))
    except (SyntaxError, ValueError, RecursionError):
        return False
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].decorator_list:
        return False
    own = tree.body[0].name
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or isinstance(node, (ast.Pow, ast.LShift)):
            return False
        if isinstance(node, ast.Call) and (not isinstance(node.func, ast.Name) or node.func.id == own):
            return False
    scope: dict = {"__builtins__": _BUILTINS}
    try:
        exec(compile(tree, "answer", "exec"), scope)
        return all(eval(test, scope) for test in tests)
    except Exception:  # noqa: BLE001 - whatever an answer raises, it is wrong
        return False


def judge(scoring: str, text: str, answer) -> bool:
    if scoring == "number":
        return number(text, answer)
    if scoring == "trace":
        return trace(text, answer)
    if scoring == "calls":
        return calls(text, answer)
    if scoring == "code":
        return code(text, answer)
    return text.strip() == answer
