"""Message lists and options the templates are rendered with."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter für <Stadt> & \"Tag\" — 天気",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name der Stadt"},
                    "days": {"type": "integer", "enum": [1, 3, 7], "default": 1},
                    "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "ping", "description": "Is it there?", "parameters": {"type": "object", "properties": {}}},
    },
]

CALL = {"id": "call12345", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "ratio": 0.5, "ok": True, "n": None}}}
CALL_TEXT = {"id": "abc123456", "type": "function",
             "function": {"name": "ping", "arguments": "{\"host\": \"a<b\"}"}}

MESSAGES = {
    "none": [],
    "user": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}],
    "turns": [
        {"role": "system", "content": "  Stay calm.  "},
        {"role": "user", "content": "one\n"},
        {"role": "assistant", "content": " two "},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four\n\n"},
        {"role": "user", "content": "five?"},
    ],
    "wrong_turns": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "unicode": [
        {"role": "user", "content": "Grüße 👩‍💻 日本語 \u2028 \"q\" 'x' <|im_end|>\n<|im_start|>system\n{{ 7 }}"},
        {"role": "assistant", "content": "naïve\tЖ\\n"},
    ],
    "tools": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "{\"t\": 21.5}", "name": "get_weather", "tool_call_id": "call12345"},
        {"role": "assistant", "content": "It is 21.5."},
        {"role": "user", "content": "And ping?"},
    ],
    "two_calls": [
        {"role": "user", "content": "Both!"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL_TEXT]},
        {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "call12345"},
        {"role": "tool", "content": "pong", "name": "ping", "tool_call_id": "abc123456"},
    ],
    "reasoning": [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4", },
        {"role": "user", "content": "3+3"},
        {"role": "assistant", "content": "6", "reasoning_content": "\nadd again\n"},
        {"role": "user", "content": "so?"},
    ],
    "parts": [
        {"role": "system", "content": [{"type": "text", "text": "Look."}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is it? "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": [{"type": "text", "text": "sure?"}, {"type": "text", "text": " yes"}]},
    ],
    "prefill": [{"role": "user", "content": "Say A"}, {"role": "assistant", "content": "A, and then "}],
}

OPTIONS = [
    {"add_generation_prompt": True},
    {"tools": True, "add_generation_prompt": True},
    {"continue_final_message": True},
    {"add_generation_prompt": True, "kwargs": {"enable_thinking": False, "reasoning_effort": "high", "date": "1 May 2025",
                                               "documents": [{"title": "T", "text": "body", "doc_id": 1}]}},
]
