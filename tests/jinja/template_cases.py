"""Cases for compare_templates.py: conversations, templates in the manner of well-known model families, and snippets that
walk systematically through the template language."""

import itertools

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city; \"now\" by default, <b>&amp;</b> é",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Name of the city"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "default": 3}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]
CALL = {"id": "call_0001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "f": 1.5, "x": None, "y": True}}}
CALL_TEXT = {"id": "abc123def", "type": "function",
             "function": {"name": "noop", "arguments": "{\"a\": 1}"}}
DOCUMENTS = [{"title": "A", "text": "first text"}, {"title": "B \"q\"", "contents": "second"}]

U = lambda c: {"role": "user", "content": c}
A = lambda c, **k: {"role": "assistant", "content": c, **k}
S = lambda c: {"role": "system", "content": c}
T = lambda c, **k: {"role": "tool", "content": c, **k}

TEXTS = ["Hi", "", "  spaced out \n\n", "Größe 你好 🧑‍🚀 é", "a\nb\r\nc\td", "<|im_end|> {{ x }} {% if %}",
         "quote \" ' \\ </think>", "<think>\nhm\n</think>\n\nanswer", "<tool_response>\nr\n</tool_response>"]


def conversations():
    """Lists of messages: well formed and not."""
    out = []
    for t in TEXTS:
        out += [[U(t)], [S(t), U("Q")], [U("Q"), A(t)], [U("Q"), A(t), U("more")], [S("sys"), U("Q"), A(t), U(t)]]
    parts = [{"type": "text", "text": "part one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    out += [
        [], [S("only system")], [A("first")], [U("a"), U("b")], [A("a"), A("b")], [U("a"), S("late")], [S("a"), S("b"), U("c")],
        [U(parts)], [S(parts), U(parts), A(parts)], [U([])], [U(None)], [U("Q"), A(None)], [S(None), U("x")],
        [{"role": "user"}], [{"content": "no role"}], [{"role": "developer", "content": "dev"}, U("x")], [{"role": "other", "content": "?"}],
        [U(5)], [U({"a": 1})], [U(True)], ["text"], [None],
        [U("w?"), A(None, tool_calls=[CALL]), T("{\"t\": 20}", tool_call_id="call_0001", name="get_weather")],
        [U("w?"), A("", tool_calls=[CALL]), T("20"), A("It is 20.")],
        [U("w?"), A("let me see", tool_calls=[CALL, CALL_TEXT]), T("20", tool_call_id="call_0001"), T("ok", tool_call_id="abc123def"), A("done"), U("thanks")],
        [S("sys"), U("w?"), A("x", tool_calls=[CALL_TEXT]), T({"temp": 20, "é": [1, 2.0, None]}, name="noop")],
        [U("w?"), A("x", tool_calls=[]), U("y")], [U("w?"), A("x", tool_calls=None), U("y")],
        [U("w?"), {"role": "assistant", "tool_calls": [CALL]}, T("1"), T("2"), U("y")],
        [U("w?"), A("x", tool_calls=[{"name": "noop", "arguments": {}}]), {"role": "ipython", "content": ["a", {"b": 1}]}],
        [T("tool first")], [U("Q"), A("x", reasoning_content="because\n"), U("R"), A("y", reasoning_content="\nso ")],
        [U("Q"), A("x", reasoning_content=None)], [U("Q"), A("<think>a</think>b", tool_calls=[CALL])],
        [S("be brief /no_think"), U("Q")], [S("/think hard"), U("Q"), A("<think>x</think>\n\ny")],
        [U("Q"), A("ok", weight=0), U("R", )],
    ]
    for n in range(1, 8):
        out.append([U(f"q{i}") if i % 2 == 0 else A(f"a{i}\n") for i in range(n)])
        out.append([S("s")] + [U(f"q{i}") if i % 2 == 0 else A(f"<think>t{i}</think>a{i}") for i in range(n)])
    return out


def argument_sets():
    return [
        ({}, True), ({}, False), ({"tools": TOOLS}, True), ({"tools": []}, False),
        ({"enable_thinking": True}, True), ({"enable_thinking": False}, True), ({"enable_thinking": False, "tools": TOOLS}, True),
        ({"documents": DOCUMENTS, "date_string": "1 May 2025"}, True),
        ({"tools": TOOLS, "tools_in_user_message": False, "documents": []}, True), ({"custom_tools": TOOLS[:1]}, False),
        ({"preserve_thinking": False}, True), ({"tools": TOOLS, "tool_call_format": "json", "preserve_thinking": True}, True),
    ]


# Templates of our own that use what the templates of these families use.
FAMILIES = {
    "alternating": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "inst_tools": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + (message.tool_call_id | default("none")) + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "turns": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""",
    "reasoner": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<｜Assistant｜><｜calls｜><｜call｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜end｜>'}}{%- else %}{{'<｜Assistant｜>' + message['content'] + '<｜call｜>' + tool['function']['name']}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<｜call｜>' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<｜calls end｜><｜eos｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<｜outputs end｜>' + message['content'] + '<｜eos｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜eos｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜outputs｜><｜output｜>' + message['content'] + '<｜end｜>'}}{%- set ns.is_output_first = false %}{%- else %}{{'<｜output｜>' + message['content'] + '<｜end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜outputs end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "json_types": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "list[" +  json_to_python_type(json_spec|items) + "]"}}
{%- elif json_spec.type == "object" %}
    {%- if json_spec.additionalProperties is defined %}
        {{- "dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
    {%- else %}
        {{- "dict" }}
    {%- endif %}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
      {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- '<|im_start|>system\n' }}
{{- "You are a function calling AI model. Here are the tools: <tools> " }}
{%- for tool in tools %}
    {%- if tool.function is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{- '{"type": "function", "function": ' }}
    {{- '{"name": "' + tool.name + '", ' }}
    {{- '"description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}
            {{- ", " }}
        {%- endif %}
    {%- endfor %}
    {{- ")" }}
    {%- if tool.return is defined %}
        {{- " -> " + json_to_python_type(tool.return) }}
    {%- endif %}
    {{- " - " + tool.description + "\n\n" }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}
            {{- "    Args:\n" }}
        {%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + (param_fields.description|default('')|trim) }}
    {%- endfor %}
    {{- '", "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}
        {{- "{}" }}
    {%- else %}
        {{- tool.parameters|tojson }}
    {%- endif %}
    {{- "}" }}
    {%- if not loop.last %}
        {{- "\n" }}
    {%- endif %}
{%- endfor %}
{{- " </tools>" }}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
    {%- for tool_call in message.tool_calls %}
       {{- '\n<tool_call>\n' }}           {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '{' }}
            {{- '"name": "' }}
            {{- tool_call.name }}
            {{- '"' }}
            {%- if tool_call.arguments is defined %}
                {{- ', ' }}
                {{- '"arguments": ' }}
                {{- tool_call.arguments|tojson }}
            {%- endif %}
             {{- '}' }}
            {{- '\n</tool_call>' }}
    {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\n' }}
        {%- endif %}
        {{- '<tool_response>\n' }}
        {{- message.content }}
        {%- if not loop.last %}
            {{- '\n</tool_response>\n' }}
        {%- else %}
            {{- '\n</tool_response>' }}
        {%- endif %}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>' }}
        {%- elif loop.last %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""",
    "documents": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = '## Task and Context\\nYou help people.' %}{% endif %}{{ '<|SYSTEM|>' }}{{ system_message }}{{ '<|END|>' }}{% for message in loop_messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|USER|>' + content.strip() + '<|END|>' }}{% elif message['role'] == 'system' %}{{ '<|SYSTEM|>' + content.strip() + '<|END|>' }}{% elif message['role'] == 'assistant' %}{{ '<|BOT|>'  + content.strip() + '<|END|>' }}{% endif %}{% endfor %}{{ '<results>' }}{% for document in documents %}{{ '\\nDocument: ' }}{{ loop.index0 }}\n{% for key, value in document.items() %}{{ key }}: {{ value }}\n{% endfor %}{% endfor %}{{ '</results>' }}
{%- for tool in tools %}
def {{ tool.function.name }}({% for p, f in tool.function.parameters.properties.items() %}{% if not loop.first %}, {% endif %}{{ p }}: {{ 'str' if f.type == 'string' else f.type }}{% if p not in tool.function.parameters.required %} = None{% endif %}{% endfor %}):
    \"\"\"{{ tool.function.description | indent(4) }}\"\"\"
{% endfor %}
{{- strftime_now('%Y-%m-%d') if strftime_now is defined }}{% if add_generation_prompt %}{{ '<|BOT|>' }}{% endif %}""",
    "generation": """{% for message in messages %}
  {% if message.role == 'assistant' %}
    {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
  {% else %}
<|{{ message.role }}|>
{{ message.content | default('', true) }}{{ eos_token }}
  {% endif %}
  {% if loop.last and add_generation_prompt %}
<|assistant|>
  {% endif %}
{% endfor %}""",
    "phi": """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "harmony": """{%- macro render_typescript_type(spec, required, level=0) -%}
    {%- if spec.type == "array" -%}
        {{- render_typescript_type(spec['items'], required, level + 1) + "[]" }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {{- "{\n" }}
        {%- for name, p in spec.get('properties', {}).items() -%}
            {{- '  ' * (level + 1) + name ~ ('' if name in (spec.required or []) else '?') ~ ': ' }}
            {{- render_typescript_type(p, spec.required, level=level+1) }}
            {%- if p.default is defined %}{{ ', // default: ' + p.default|tojson }}{% endif %}
            {{- ",\n" if not loop.last else "\n" }}
        {%- endfor %}
        {{- '  ' * level + '}' }}
    {%- else -%}
        {{- spec.type | default('any') -}}
    {%- endif -%}
{%- endmacro -%}
{%- set reasoning_effort = reasoning_effort | default("medium") %}
<|start|>system<|message|>Reasoning: {{ reasoning_effort }}
{% if tools -%}
# Tools
{% for tool in tools %}
{%- set f = tool.function -%}
type {{ f.name }} = (_: {{ render_typescript_type(f.parameters, []) }}) => any;
{% endfor %}
{%- endif -%}
{%- for m in messages if m is mapping and m.role is defined %}
    {%- if m.role == 'tool' %}
        {%- if loop.index0 == 0 %}{{ raise_exception('tool without call') }}{% endif %}
        {{- '<|start|>functions.' ~ (m.name or 'x') ~ ' to=assistant<|message|>' ~ m.content|tojson ~ '<|end|>' }}
        {%- continue %}
    {%- endif %}
    {%- if m.role not in ['user', 'assistant', 'system', 'developer'] %}{% break %}{% endif %}
    {{- '<|start|>' ~ m.role ~ '<|message|>' ~ (m.content if m.content is string else m.content|tojson(indent=2)) ~ '<|end|>' }}
{%- else %}
    {{- 'no messages' }}
{%- endfor -%}
""",
}

VARIABLES = {
    "i": 7, "n": -3, "f": 2.5, "z": 0, "t": True, "ff": False, "no": None, "big": 12345678901, "s": "Hello World",
    "e": "", "u": "Größe ﬁ ΣΑΣ 你好 🧑‍🚀", "ws": "  \t padded\n text \n", "lines": "one\ntwo\r\n\nfour\n", "q": "it's \"q\" \\ \n\x01é",
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "le": [], "lm": [1, "a", None, True, 2.5], "ll": [[1, 2], [3, [4]], []],
    "d": {"b": 1, "a": "x", "C": None}, "de": {}, "dn": {"k": {"x": [10, 20]}, "items": 5},
    "us": [{"n": "bob", "a": 30, "x": {"y": 1}}, {"n": "Al", "a": 5, "x": {"y": 2}}, {"n": "cy", "a": 30}],
}


def expressions():
    """Expressions to print, over the variables above."""
    e = []
    names = list(VARIABLES) + ["missing"]
    e += names
    e += [f"{n} is {t}" for n in names for t in
          "defined undefined none string mapping iterable sequence number integer float boolean true false callable upper lower".split()]
    e += [f"{n}|{f}" for n in names for f in
          "length string upper lower title capitalize trim first last list join int float abs round tojson sort sum min max unique|list "
          "reverse|list items|list dictsort escape default('D') default('D',true) d not".replace(" not", "").split()]
    values = ["i", "n", "f", "z", "t", "no", "s", "e", "l", "ls", "d", "missing", "'3'", "2", "-2.0", "(1,2)", "[]"]
    for a, b in itertools.product(values, values):
        e += [f"{a} {op} {b}" for op in ("+", "*", "==", "<", "in", "~", "and", "%")]
    numbers = ["7", "-7", "2", "-2", "0", "2.5", "-0.5", "true"]
    for a, b in itertools.product(numbers, numbers):
        complex_power = a.startswith("-") and "." in b  # Python has complex numbers, templates have no use for them
        e += [f"({a}) {op} ({b})" for op in ("-", "/", "//", "%", "**", ">=", "!=") if op != "**" or not complex_power]
    parts = ["", "0", "1", "-1", "-2", "2", "5", "-9", "99", "no"]
    for a, b in itertools.product(parts, parts):
        e += [f"s[{a}:{b}]", f"l[{a}:{b}]"]
    for a, b, c in itertools.product(["", "1", "-1", "9"], ["", "0", "-3", "9"], ["", "1", "2", "-1", "-2", "0"]):
        e += [f"u[{a}:{b}:{c}]", f"lm[{a}:{b}:{c}]", f"range(2,20,3)[{a}:{b}:{c}]"]
    e += [f"{v}[{k}]" for v in ("s", "l", "d", "ll", "i", "no", "u", "(1,2)", "range(5)") for k in ("0", "-1", "9", "'a'", "'upper'", "1.0", "true", "none", "missing")]
    e += [f"{v}.{k}" for v in ("s", "l", "d", "dn", "us", "no", "i", "missing") for k in
          ("a", "b", "0", "1.n", "items", "keys", "append", "pop", "update", "__class__", "get('a')", "get('zz', 3)", "k.x.1", "upper()", "count(1)", "index(1)", "copy()")]
    strings = ["s", "e", "u", "ws", "lines", "q", "'a,b,,c'", "'42'", "'Hello'", "'ǆ ß İ'", "'x²Ⅷ½'", "'١٢'"]
    methods = ["strip()", "strip('Hd ')", "lstrip()", "rstrip('\\n ')", "split()", "split(',')", "split(None, 1)", "split(',', 2)", "split('o', -1)", "rsplit(',', 1)", "rsplit(None, 1)",
               "splitlines()", "splitlines(true)", "startswith('H')", "startswith(('x','H'))", "endswith('d')", "endswith('')", "startswith('W', 6)", "upper()", "lower()", "title()", "capitalize()",
               "replace('o','0')", "replace('','-')", "replace('l','L',1)", "find('o')", "rfind('o')", "find('zz')", "index('l')", "index('zz')", "count('l')", "count('')", "isdigit()", "isalpha()",
               "isalnum()", "isupper()", "islower()", "isspace()", "isascii()", 
               "removeprefix('He')", "removesuffix('ld')", "partition('o')", "rpartition('o')", "partition('zz')", "join(['a','b'])", "join(ls)", "join([1])", "format()", "encode", "nope()", "find('o', 5)", "find('o', -3, -1)"]
    e += [f"{v}.{m}" for v in strings for m in methods]
    e += FORMATS + MISC
    return e


FORMATS = (
    ["'%s' % " + v for v in ("1", "s", "l", "d", "(1,)", "(1,2)", "none", "true", "2.0", "missing", "()")]
    + ["'%" + f + "' % " + v for f in ("d", "5d", "-5d|", "05d", "+d", " d", "x", "X", "#x", "o", "i", ".3d", "f", ".2f", "8.3f", "-8.1f|", "08.2f", "e", ".2e", "g", ".3g", "r", "10s|", "-10s|", ".2s", "c", "%")
       for v in ("42", "-7", "3.14159", "1e17", "'é'", "(65,)", "true")]
    + ["'%(a)s-%(b)05.1f' % {'a': 1, 'b': 2.25}", "'%s %s' % ('a',)", "'%d' % 'x'", "'%s' % ('a','b')", "'%*d' % (5, 3)", "'%q' % 1", "'%' % 1", "'100%%' % ()", "'%s and %r'|format('a', 'b')", "'%(x)s'|format(x=3)"]
    + ["'{" + f + "}'.format(" + v + ")" for f in ("", "0", ":>6", ":<6", ":^7", ":*^7", ":d", ":05", ":+", ":,", ":_", ":x", ":#x", ":b", ":.2f", ":8.3f", ":e", ":.3g", ":%", ":.1%", "!r", "!s:>4", ":s", ":.2", ":n", ":,.2f", ":=+6", ":06.1f")
       for v in ("42", "-1234567", "3.14159", "'abc'", "true", "none", "l", "1e21")]
    + ["'{} {}'.format(1,2)", "'{1} {0}'.format(1,2)", "'{a} {b[x]}'.format(a=1,b={'x':2})", "'{0.b} {0[a]}'.format(d)", "'{} {1}'.format(1,2)", "'{'.format()", "'}'.format()", "'{{}}'.format()", "'{x}'.format(y=1)", "'{:{}}'.format('a', 5)", "'{:{w}}|'.format(3, w=5)", "'{0[0]}'.format(l)", "'{}'.format()"]
)

MISC = """1 if t else 2
1 if ff
(1 if ff) is defined
not t
not not s
t and s
ff or no or 'x'
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == true
i > 5 and s in 'Hello World!'
'a' not in ls
3 not in l and 9 in l
'ell' in s
no in s
i in s
'b' in d
l in d
{} == de
{'a':1,'b':2} == {'b':2,'a':1}
(1,2) == [1,2]
[1,2] < [1,3]
(1,'a') < (1,2)
[1] + [2,3]
(1,) + (2,)
[0] * 3
'ab' * 3
3 * 'ab'
'ab' * -1
-i|abs
-2 ** 2
2 ** 3 ** 2
2 ** -1
2 ** 0.5
10 // 3
-10 // 3
10 % -3
10.5 // -3
-10.5 % 3
7 / 2
8 / 2
1 / 0
1 // 0
1.0 % 0
1e3
1_000
0x1F
0b101
0o17
1.5e-7
1e16
1e15
123456789012345678.0
0.1 + 0.2
1e308 * 10
-1e308 * 10
3.0
100000.0
-0.0
'a' 'b' "c"
'\\n\\t\\x41\\u00e9\\U0001f600\\101\\q'|tojson
"it's"
['it\\'s', "q\\"q", 'both \\' "']
['\\n', '\\x00', 'é', '\\u200b', '\\xa0']
{'a': [1, (2,), {}], 3: none}
{1: 'a', true: 'b', 1.0: 'c'}
{[]: 1}
()
(1,)
[1,]
(1, 2,)
[1, 2][0]
{'a': {'b': 3}}.a.b
{'a': 1}['a']
{'keys': 1}.keys
{'keys': 1}['keys']
dn.items
dn['items']
dn.items()
d.items()
d.keys()
d.values()
d.keys()|list
d.items()|list
d.get('a')
d.get('zz')
d.get('zz', 'x')
d.get(key='a')
d.pop('a')
d.update({'x': 1})
d.setdefault('x', 1)
l.append(1)
l.sort()
l.append is defined
l.extend([1])
missing.x
missing['x']
missing.x.y
missing()
missing + 1
1 + missing
missing ~ 'x'
missing < 1
missing == missing
missing == other_missing
missing == none
missing is none
-missing
missing|length
missing|list
missing|join('x')
missing|upper
missing|int
missing|float
missing|tojson
missing[1:]
missing in l
'x' in missing
[missing]
d.zz
d.zz.y
s.nope
s.nope.x
l[9]
l[9].x
no.x
no.x.y
no[0]
i.x
u|length
u[4]
u[-1]
u|upper
u|lower
u|title
u|list
u|reverse
s|reverse
l|reverse
l|reverse|list
range(3)
range(3)|list
range(1, 10, 4)|list
range(5, 0, -2)|list
range(0)|list
range(3) == [0,1,2]
range(3)|length
range(5)[1]
range(1.5)
range('a')
range(1,2,0)
range(200000)
dict(a=1, b='x')
dict([('a', 1), ('b', 2)])
dict({'a': 1}, b=2)
namespace(a=1).a
namespace(a=1).b
namespace(a=1)
dict
ls|sort
ls|sort(reverse=true)
ls|sort(case_sensitive=true)
lm|sort
l|sort|join(',')
us|sort(attribute='n')|map(attribute='n')|list
us|sort(attribute='a,n')|map(attribute='n')|list
us|sort(attribute='a', reverse=true)|map(attribute='n')|list
us|map(attribute='x.y')|list
us|map(attribute='x.y', default=0)|list
us|map(attribute='zz', default='-')|join(',')
us|map('length')|list
ls|map('upper')|join
ls|map('replace', 'a', 'zz')|list
ls|map('nofilter')|list
ls|map
l|map('string')|list
us|selectattr('a', 'equalto', 30)|list|length
us|selectattr('x')|map(attribute='n')|list
us|selectattr('x', 'undefined')|map(attribute='n')|list
us|rejectattr('x.y', 'defined')|list
us|rejectattr('a', 'gt', 10)|map(attribute='n')|first
us|selectattr('n', 'in', ['bob', 'cy'])|list|count
us|selectattr('x.y')|list
l|select('odd')|list
l|select('>', 1)|list
l|reject('even')|list
lm|select|list
lm|reject('none')|list
lm|select('string')|list
l|select('notest')|list
l|sum
us|sum(attribute='a')
ll|sum(start=[])
ls|sum
[1.5, 2]|sum
l|min
l|max
ls|min
ls|max
le|min
us|max(attribute='a')
lm|max
le|first
le|last
s|first
s|last
d|first
d|last
d|list
d|length
d|dictsort
d|dictsort(true)
d|dictsort(by='key', reverse=true)
{'a': 2, 'b': 1}|dictsort(by='value')
d|items|list
l|items|list
d|tojson
d|tojson(indent=2)
dn|tojson(indent=4)
us|tojson
us|tojson(indent=1, sort_keys=true)
d|tojson(separators=(',', ':'))
d|tojson(sort_keys=true)
u|tojson
u|tojson(ensure_ascii=true)
q|tojson
ll|tojson(indent=2)
[1.0, 1e20, none, true]|tojson
{1: 2, none: 3, true: 4, 2.5: 5}|tojson
{(1,2): 3}|tojson
(1,2)|tojson
range(3)|tojson
missing|tojson
d.items()|tojson
l|map('abs')|tojson
'<a href="x">&\\'</a>'|tojson
[[], {}, [[]]]|tojson(indent=2)
'\\x7f\\u2028'|tojson
lines|indent
lines|indent(2, true)
lines|indent(2, true, true)
lines|indent('> ')
lines|indent(width=3, first=true)
e|indent(2, true)
i|indent
s|replace('l', 'L')
s|replace('l', 'L', 1)
i|replace(7, 8)
s|replace('o')
ws|trim
ws|trim(' ')
s|trim('Hd')
i|trim
'a-b (c) d_e [f]'|title
'HELLO wORLD'|title
'ß'|capitalize
'3.7'|int
'0x1f'|int(0, 16)
'0x1f'|int
'x'|int
'x'|int(-1)
'x'|int(default=5)
' 12 '|int
'1_000'|int
3.9|int
-3.9|int
none|int
true|int
l|int
'1e3'|int
'inf'|float
'nan'|float
'1.5'|float
'x'|float
'x'|float(1.5)
' 2 '|float
2.5|round
3.5|round
2.675|round(2)
2.5|round(0, 'ceil')
2.1|round(method='floor')
-2.5|round
1234.5|round(-2)
1250|round(-2)
1350|round(-2)
42|round(1)
42.55|round(1, 'floor')
2.5|round(0, 'x')
'x'|round
-5|abs
-5.5|abs
'x'|abs
5|string ~ '1'
l|string
1.0|string
l|join
l|join(', ')
us|join(', ', attribute='n')
s|join('-')
d|join(',')
lm|join('|')
no|join
l|join(1)
s|list
ll|first|last
'<b>"x" & \\'y\\''|e
'<b>'|e|e
'<b>'|escape ~ '<'
('<b>'|e) + '<'
'<' + ('<b>'|safe)
'<b>'|safe
'<b>'|safe|e
('<b>'|e)|upper
['<b>'|e]
('<%s>'|safe) % '<'
d|attr('b')
d|attr('get')('a')
s|attr('upper')()
l|attr('append')
ls|unique|list
['a','A','b']|unique|list
['a','A','b']|unique(true)|join
[1, 1.0, true]|unique|list
[[1],[1]]|unique|list
us|unique(attribute='a')|map(attribute='n')|list
x|default('d')
no|default('d')
no|default('d', true)
e|d('d', boolean=true)
missing.x|default('d')
d.zz|default('d')
(missing|default(d)).a
i is odd
i is even
z is even
f is odd
s is odd
i is divisibleby 7
i is divisibleby(2)
i is divisibleby(0)
i is eq 7
i is equalto(7)
i is ne 3
i is gt 3
i is ge 7
i is lt 3
i is le 7
i is lessthan 9
i is greaterthan 9
i is sameas 7
no is sameas none
i is in [7]
i is not in [7]
'a' is in 'abc'
s is string and i is number
not i is string
i is not string
t is integer
t is number
f is float
range is callable
s is callable
raise_exception is callable
strftime_now is defined
l is sequence and l is not mapping
d is mapping and d is iterable
d.items() is sequence
d.items() is iterable
l|map('abs') is iterable
l|map('abs') is sequence
range(3) is sequence
(1,2) is iterable
i is notest
t is notest if ff else 3
s|nofilter
s|nofilter if ff else 3
s.upper is callable
s.upper()|lower
s.split()[0].lower()
s.split(' ')|last
l.count(1)
l.index(2)
l.index(9)
(1,2,1).count(1)
(1,2,1).index(2)
l.copy()
d.copy()
s.upper(1)
s.split(sep=' ', maxsplit=1)
s.replace('o', 'x', count=1)
raise_exception('boom é')
raise_exception()
raise_exception(1)
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S %A %B %j')
strftime_now('')
strftime_now()
l[i]
l[-i]
l[true]
d[no]
d[['x']]
ll[1][1][0]
us[0].x.y
us[0]['x']['y']
us[-1].x
us[-1].x.y
us.0.n
(us|first).n
(1,2,3)[1:]
'abc'[::-1]
'abc'[5:]
i[1:]
d[1:]
l[f:]
l['a':]
s[missing:]
i.bit_length
*l
l l
a b
1 +
(1
[1
{1}
{'a'}
{'a':}
1 if
1 is
1 |
x.
x[
x[]
'unclosed
"a
%
@
$x
i++
!t
i && t
i || t
a = 1
not
and
in
is
if
'a' if 'b' else
loop
caller
varargs
kwargs
messages
tools
documents
add_generation_prompt
foo.bar(
f(1 2)
f(a=1, 2)
f(*l)
dict(**d)
range(*[1, 4])|list
dict(**{'a': 1})
dict(**l)
1,2
1,
[i, *l]
{**d}
l is sequence is true
i is defined is true
i is not not string
1 == 1 is true
none is none and true
missing is defined or i
i if i is defined else 'x'
'a' if missing else 'b' if ff else 'c'
(i, s)[1]
"%s" % s|upper
"%s" % (s|upper)
'x' ~ 1 + 2
'x' ~ 1 * 2
1 ~ 2 == '12'
i - 1 ~ ''
s|length - 1
s|length == 11
s|upper + '!'
-s|length
not s|length
l|length > 2 and l|first == 3
(l|length) / 2
s.lower() in ['hello world']
'%.2f'|format(3.14159)
'%s'|format
9223372036854775807
-9223372036854775807 - 1
18014398509481985 + 0.0
1e400
1.e5
.5
5.
07
00
1__0
0x
true + true
true == 1
'1' == 1
none == false
[] == ()
'a' < 'b'
'a' < 1
none < 1
[1] < 1
'B' < 'a'
'é' > 'z'
'' < 'a'
true < 2""".split("\n")

STATEMENTS = r"""
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem }}-{{ x }}-{{ loop.nextitem }};{% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }}{% endfor %}
{% for x in l %}{{ loop }}{% endfor %}
{% for x in l if x > 1 %}{{ x }}/{{ loop.index }}/{{ loop.length }}/{{ loop.last }} {% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in le %}{{ x }}{% else %}empty{% endfor %}
{% for x in l %}{% break %}{% else %}empty{% endfor %}
{% for x in missing %}{{ x }}{% else %}empty{% endfor %}
{% for x in no %}{{ x }}{% endfor %}
{% for x in i %}{{ x }}{% endfor %}
{% for x in s %}{{ x }}.{% endfor %}
{% for x in u %}{{ x }}.{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|dictsort %}{{ k }}={{ v }};{{ loop.last }}{% endfor %}
{% for (k, v) in d.items() %}{{ k }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in l %}{{ a }}{% endfor %}
{% for a, b in [(1,2,3)] %}{{ a }}{% endfor %}
{% for a in 1, 2, 3 %}{{ a }}{% endfor %}
{% for x in range(10) %}{% if x is odd %}{% continue %}{% endif %}{% if x > 6 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in l %}{% if y == x %}{% break %}{% endif %}{{ y }}{% endfor %}|{% endfor %}
{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in ll recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}
{% for x in ll %}{{ loop(x) }}{% endfor %}
{% for x in l %}{% set y = x %}{% endfor %}{{ y }}
{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }}{% endfor %}{{ y }}
{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}{{ ns['a'] }}
{% set d.a = 1 %}
{% set missing.a = 1 %}
{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}
{% set x, y = 1, 2 %}{{ x }}{{ y }}
{% set x, y = y, x %}
{% set (x, y) = [1, 2] %}{{ y }}
{% set x = 1, 2 %}{{ x }}
{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x|length }}
{% set x | upper %}abc{% endset %}{{ x }}
{% set x | upper | replace('A', 'z') %}abc{% endset %}{{ x }}
{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}
{% set x %}{% set z = 5 %}{{ z }}{% endset %}{{ x }}{{ z }}
{% set 1 = 2 %}
{% set x.y.z = 2 %}
{% set %}
{% if t %}{% set x = 1 %}{% endif %}{{ x }}
{% if ff %}{% set x = 1 %}{% endif %}{{ x }}{{ x is defined }}
{% if ff %}a{% elif z %}b{% elif i %}c{% else %}d{% endif %}
{% if ff %}a{% else %}b{% endif %}
{% if missing %}a{% else %}b{% endif %}
{% if missing.x %}a{% endif %}
{% if t: %}a{% endif %}
{% if t %}a
{% if %}a{% endif %}
{% endif %}
{% else %}
{% for x in l %}
{% for in l %}{% endfor %}
{% for x l %}{% endfor %}
{% for loop in l %}{% endfor %}
{% for x in l %}{{ x }}{% endif %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c=4) }}|{{ m() }}|{{ m(b=1, a=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}
{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}
{% macro m(a=1, b) %}{% endmacro %}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}
{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}body{% endcall %}
{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% for v in l %}{% call m(v) %}{{ loop.index }}{{ v }}{% endcall %}{% endfor %}
{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}
{% macro m() %}abc{% endmacro %}{{ m()|upper }}{{ m() ~ 'd' }}{{ m }}
{% macro m(x) -%}   {{ x }}   {%- endmacro %}[{{ m(1) }}]
{% call raise_exception('x') %}{% endcall %}
{% call 5 %}{% endcall %}
{% filter upper %}abc{{ s }}{% endfilter %}
{% filter replace('a', 'b')|upper %}abca{% endfilter %}
{% filter nofilter %}abc{% endfilter %}
{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}{{ x }}
{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}
{% set x = 5 %}{% with x = 1, y = x %}{{ y }}{% endwith %}
{% with x %}{% endwith %}
{% raw %}{{ x }}{% if %}{% endraw %}
{%- raw -%} {{ x }} {%- endraw -%} 
{% raw %}
 a
{% endraw %}
{% raw %}abc
a{# comment #}b
a{#- comment -#} b
  {# comment #}
b
a {#
 multi %} {{ }} #} b
{# unclosed
{{ i }}{# a #}{{ i }}
{% print i, s %}
{% print i %}
{% block x %}abc{% endblock %}
{% set y = 3 %}{% block x %}{{ y }}{% endblock x %}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{% from 'x' import y %}
{% do l.append(1) %}
{% unknown %}
{% break %}
{% continue %}
{% generation %}a{% set x = 1 %}{{ i }}{% endgeneration %}{{ x }}
{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% generation %}
{% for x in l %}{% set y %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endset %}{{ y }}{% endfor %}
{% for x in l %}{% with %}{% break %}{% endwith %}{% endfor %}ok
{% if t %}x{% endif %}{{ 'a' if t }}{{ 'a' if ff }}
{% set g = l|map('string') %}{{ g|join(',') }}{{ g|join(',') }}
{% set g = l|select %}{{ g is sequence }}{{ g|list }}{{ g|list }}{{ g is iterable }}
{% set g = l|map('abs') %}{% if g %}true{% endif %}{{ g|length }}
{% for x in l|map('string') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}
{% for x in l|reverse %}{{ x }}{% endfor %}
{% for x in l[::-1] %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in l|sort %}{{ x }}{% endfor %}
{% for x in (1, 2) if x %}{{ x }}{% endfor %}
{% for x in [1, 2] if loop.index %}{{ x }}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %}{{ i }}
{% set l = l + [9] %}{{ l }}
{% set messages = messages[1:] %}{{ messages }}
{% set ns = namespace(l=[]) %}{% for x in [1,2] %}{% set ns.l = ns.l + [x] %}{% endfor %}{{ ns.l }}
{% set ns = namespace(found=false) %}{% for x in l %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}
{% set x = {'a': 1} %}{% set _ = x.update({'b': 2}) %}{{ x }}
{% set a = b = 1 %}
{{ '{{' }}{{ "}}" }}
{{ {'a': {'b': 1}} }}
{{ {'a': {'b': 1}}['a']['b'] }}
{{ {} }}{{ [] }}{{ () }}
{{}}
{{ }}
{{ i
{{ i }
{{ i %}
{% if i }}
{{ i }}}
{ { i } }
{{ '%}' }}{% if '%}' == '%}' %}x{% endif %}
{% if t -%}   a   {%- endif %}  b
a  {%- if t %} b {% endif -%}  c
a  {{- i }}  b
a  {{ i -}}  b
a  {{+ i }}  b
   {%+ if t %}x{% endif %}
   {% if t +%}
x{% endif %}
{% if t %}
a
{% endif %}
b
  {% if t %}
  a
  {% endif %}
  b
x {% if t %}
y
  {% endif %} z
	{% if t %}	
tab
	{% endif %}

{% for x in l %}
  {{ x }}
{% endfor %}
end
{% for x in l -%}
  {{ x }}
{%- endfor %}
end

{{ i }}

{% set x = 1 -%}

a

  {#- c -#}

b
  {{ i }}
{{ i }}
{{- i -}}
{{ i }}
{# c #}
a
{%- set x = 1 -%}
{%- for x in l -%}
  {{- x -}}
{%- endfor -%}
a{% set x = 1 %}
b{% set x = 1 %} 
c
{{ "a
b" }}
{{ 'a\
b' }}
{{ 'é\é' }}
{{ l|join(
  ', '
) }}
{%
  if t
%}x{%
  endif
%}
{% set	x=1 %}{{x}}{{x+1}}{{x-1}}{{-x}}
{% if not(t and ff) %}x{% endif %}
{% if (t)and(t) %}x{% endif %}
{% if t %}{{ s|nofilter }}{% endif %}
{% if ff %}{{ s|nofilter }}{{ s is notest }}{% endif %}ok
{% for x in le %}{{ s|nofilter }}{% endfor %}ok
{% if ff %}{% for x in le %}{{ s|nofilter }}{% endfor %}{% endif %}ok
{% set é = 1 %}{{ é }}
{% for x in l %}{{ loop.nope }}{{ loop['index'] }}{{ loop.index is odd }}{% endfor %}
{% macro m(x) %}{{ x }}{% endmacro %}{{ [1,2]|map('m')|list }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m is callable }}{{ m(m) is string }}
{% macro outer() %}{% macro inner() %}in{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}
{% macro m(a) %}{% for x in a recursive %}{{ x }}{% endfor %}{% endmacro %}{{ m([1,2]) }}
""".strip("\n").split("\n")

# Snippets of several lines; the list above has one per line.
BLOCKS = [
    "  {% if t %}\n  a\n  {% endif %}\n  b\n", "x {% if t %}\ny\n  {% endif %} z\n", "\t{% if t %}\t\ntab\n\t{% endif %}\n",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend\n\n", "{% if t +%}\nx{% endif %}",
    "   {%+ if t %}x{% endif %}", "a\n\n  {#- c -#}\n\nb", "a\n  {# c #}\nb", "{# c #}\na", "  {{ i }}\n", "a\n   {{- i -}}\n  b", "{% raw %}\n a\n{% endraw %}\nb",
    "  {% raw %}\n  {{ a }}\n  {% endraw %}\nb", "{%- raw -%}\n a\n{%- endraw -%}\n b", "{% set x = 1 -%}\n\na", "{% set x = 1 %}\n\na", "{% set x %}\nblk\n{% endset %}\n{{ x }}.",
    "a\r\nb\r{% if t %}\r\nc{% endif %}\r\n", "\n\n", "a\n\n", "", "\n", " ", "{{ 'a\nb' }}", "{{ 'a\\\nb' }}", "{{ l|join(\n ', '\n) }}", "{%\n  if t\n%}x{%\n  endif\n%}\n",
    "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]", "{% macro m() -%}\n  x\n{%- endmacro %}\n[{{ m() }}]", "{% if t %}\n{% for x in l %}\n{% if x > 1 %}\n{{ x }}\n{% endif %}\n{% endfor %}\n{% endif %}\n",
    "a {%- if t -%} \n\t b {%- endif -%} \u00a0 c", "\u2003{% if t %}x{% endif %}", "a\x0b{%- if t %}x{% endif %}", "{{ i }}\n{{ i }}\n", "{% if t %}a\n{% else %}b\n{% endif %}\nc\n", "{{\ni\n}}", "{# a\nb #}\nc", "{#\n-#}\n\nc",
    "{% for m in us %}\n{{ m.n }}\n  {%- if not loop.last %}, {% endif %}\n{% endfor %}", "line\n    {% set x = 1 %}  \nnext", "line\n    {% set x = 1 %}{% set y = 2 %}\nnext", "  {% set x = 1 %}  {% set y = 2 %}  \nnext",
    "{% generation %}\nabc\n{% endgeneration %}\nd", "{% for x in l %}{% generation %}\n{{ x }}\n{% endgeneration %}\n{% endfor %}",
]


def snippets():
    return ["{{ " + e + " }}" for e in expressions()] + STATEMENTS + BLOCKS
