#!/usr/bin/env python3
"""Writes text_templates.json: what transformers' chat-template machinery (Jinja2) makes of many templates.

Usage: python text_templates.py   (needs transformers and jinja2 3.1.6)

Snippets are in text_templates/snippets.py, whole templates, written in the manner of the well-known model families,
in text_templates/*.jinja. A case without "expected" must fail; "raised" is the exact message of raise_exception.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "text_templates"))
import inputs  # noqa: E402
import snippets  # noqa: E402

NOW = 1753001122  # strftime_now is asked at this moment, in UTC
compile_template = chat_template_utils._cached_compile_jinja_template


class Raised(Exception):
    pass


def compile_with_fixed_clock(source):
    template = compile_template(source)
    now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
    template.environment.globals["strftime_now"] = now.strftime

    def raise_exception(message):
        raise Raised(message)

    template.environment.globals["raise_exception"] = raise_exception
    return template


chat_template_utils._compile_jinja_template = compile_with_fixed_clock


def render(case, source):
    arguments = {"bos_token": "<s>", "eos_token": "</s>", **case.get("kwargs", {})}
    documents = arguments.pop("documents", None)
    generation = case.get("add_generation_prompt", False)
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[inputs.MESSAGES[case["messages"]]],
            tools=inputs.TOOLS if case.get("tools") else None,
            documents=documents,
            chat_template=source,
            add_generation_prompt=generation,
            continue_final_message=case.get("continue_final_message", False),
            **arguments,
        )
    except Raised as error:
        case["raised"] = str(error)
    except Exception as error:  # any failure counts
        case["error"] = f"{type(error).__name__}: {error}"[:100]
    else:
        case["expected"] = texts[0]


def main():
    templates = {}
    cases = []
    for number, snippet in enumerate(snippets.SNIPPETS):
        name = f"snippet {number:03}"
        templates[name] = snippet
        case = {"template": name, "messages": "none", "kwargs": snippets.VARIABLES}
        render(case, snippet)
        case["kwargs"] = "snippets"
        cases.append(case)
    for path in sorted((HERE / "text_templates").glob("*.jinja")):
        source = path.read_text()
        templates[path.stem] = source
        for messages in inputs.MESSAGES:
            for options in inputs.OPTIONS:
                case = {"template": path.stem, "messages": messages, **options}
                render(case, source)
                cases.append(case)
    unexpected = [c for c in cases if "error" in c and templates[c["template"]] not in snippets.FAILING]
    wrong = [c for c in unexpected if c["template"].startswith("snippet")]
    wrong += [c for c in cases if templates[c["template"]] in snippets.FAILING and "expected" in c]
    for case in wrong:
        print("not as meant:", templates[case["template"]], case.get("error"), case.get("expected"))
    result = {"now": NOW, "tools": inputs.TOOLS, "messages": inputs.MESSAGES, "snippet_variables": snippets.VARIABLES,
              "templates": templates, "cases": cases}
    with open(HERE / "text_templates.json", "w") as out:
        json.dump(result, out, ensure_ascii=False, indent=0)
        out.write("\n")
    print(len(snippets.SNIPPETS), "snippets,", len(templates), "templates,", len(cases), "cases,",
          sum("expected" not in c for c in cases), "of them failures")


main()
