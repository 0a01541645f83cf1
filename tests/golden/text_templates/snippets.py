"""Snippets; `VARIABLES` are their arguments. Those in FAILING must fail."""

VARIABLES = {
    "a": 7, "b": -3, "f": 2.5, "big": 18446744073709551615, "s": "Hello, Wörld", "e": "", "n": None, "t": True,
    "xs": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "d": {"x": 1, "y": [1, 2], "items": "own", "z": None},
    "u": "Straße ǅ ΑΣ ﬁ", "ws": " \t\u00a0mid dle\u3000\n", "lines": "l1\nl2\r\nl3\n\nl5", "html": "<b>&'\"</b>",
    "people": [{"name": "Ann", "age": 31, "city": "Ulm"}, {"name": "bob", "age": 25, "city": "ulm"},
               {"name": "Cy", "age": 31, "city": "Bonn", "tags": ["x"]}],
    "nested": [1, [2, [3, "q'\"", {"k": (1.0), "é": None}]], True],
    "floats": [0.1, 1e16, 1e-5, 123456789.0, 1e22, 5e-324, -0.0, 3.0, 1.5e300],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "key": "x", "fmt": "%s|%s", "num": "42", "numf": " 4_2.75 ", "emoji": "a👩‍💻é",
}

PRINTING = r'''
{{ a }} {{ b }} {{ f }} {{ big }} {{ t }} {{ n }} {{ e }} {{ missing }}|
{{ xs }} {{ d }} {{ nested }}
{{ floats }} {{ 1e100 }} {{ 100000.0 * 10 }} {{ 1/3 }}
{{ (1,) }} {{ (1, 2) }} {{ () }} {{ [] }} {{ {} }} {{ [none, true, 'x'] }}
{{ "it's" ~ ['it\'s', "say \"hi\"", "both ' and \""] }}
{{ ['\n\t\\', 'é', '\u2028', '\x00', '\U0001f600', '\xa0'] }}
{{ range(3) }} {{ range(1, 10, 3) }} {{ range(5)[1:3] | list }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }}
{{ namespace(a=1, b='x') }}
{{ 0x1F }} {{ 0o17 }} {{ 0b101 }} {{ 1_000 }} {{ 1.5e3 }} {{ 2E-2 }} {{ 1_0.5 }}
{{ 'a' 'b' "c" }} {{ 'tab\there' }} {{ 'q\'q' }} {{ "\x41\u00e9\101" }} {{ '\d' }}
{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ a + b }} {{ a - b * 2 }} {{ (a - b) * 2 }} {{ a * f }} {{ t + 1 }} {{ +a }} {{ --a }} {{ 2 ** 3 ** 2 }}
{{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] * 2 }} {{ [1] + [2, 3] }} {{ (1,) + (2,) }} {{ 'a' + 'b' }} {{ 'x' * -1 }}|
{{ 1 ~ 'a' ~ 2.0 ~ none ~ true ~ missing ~ [1] }}
{{ 'a' ~ 1 ~ 2 }} {{ 1 ~ 2 * 3 }} {{ ('a' ~ 1) + 'b' ~ 2 }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }} {{ none == missing }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 != 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) <= (1, 0) }}
{{ 'ell' in s }} {{ 1 in xs }} {{ 'x' in d }} {{ 9 not in xs }} {{ 'z' in missing }} {{ none in [none] }} {{ 2 in range(3) }}
{{ a and b }} {{ e or 'dflt' }} {{ not e }} {{ n and 1 }} {{ 0 or n or 'last' }} {{ not a == 7 }} {{ not not a }}
{{ 'yes' if a > 3 else 'no' }} {{ 'yes' if a > 30 }}| {{ 1 if e else 2 if n else 3 }} {{ (1 if t) }}
{{ s[0] }} {{ s[-1] }} {{ s[7] }} {{ s[1:4] }} {{ s[:-3] }} {{ s[::-1] }} {{ s[::2] }} {{ s[100] }}| {{ s[5:2] }}| {{ s[-3:] }} {{ emoji[1:] }} {{ emoji[::-1] }}
{{ xs[0] }} {{ xs[-1] }} {{ xs[9] }}| {{ xs[1:] }} {{ xs[::-1] }} {{ xs[:1] }} {{ xs[5:] }} {{ xs[-2:10] }} {{ xs[2:0:-1] }} {{ xs[::5] }}
{{ d.x }} {{ d['x'] }} {{ d[key] }} {{ d.nope }}| {{ d['nope'] }}| {{ d.y[1] }} {{ d.y.1 }} {{ d['y'].0 }} {{ n.foo }}| {{ n['x'] }}| {{ d[1] }}|
{{ d['items'] }} {{ d.get('x') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.items() | list }}
{{ {'a': 1, 'a': 2, 1: 'x', 1.0: 'y', true: 'z', none: 3, (1, 2): 4} }}
{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ 1, 2 }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('k', 'v')]) }}
'''

STATEMENTS = r'''
{% for x in xs %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}={{ x }};{% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %} {% for x in missing %}x{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for k, v in d|items %}{{ k }}{% endfor %}
{% for x in xs if x > 1 %}{{ x }}:{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}no{% endfor %}
{% for x in xs if x > 9 %}{{ x }}{% else %}no{% endfor %}
{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}[{{ x }}]{% endif %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in [1, 2, 3, 4, 5] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for row in [[1, 2], [3, 4]] %}{% for c in row %}{{ loop.index }}{{ c }}{% endfor %}{{ loop.index }};{% endfor %}
{% for (p, q), r in [((1, 2), 3)] %}{{ p }}{{ q }}{{ r }}{% endfor %} {% for p, (q, r) in [(1, (2, 3))] %}{{ p }}{{ q }}{{ r }}{% endfor %}
{% for node in tree recursive %}{{ node.v }}@{{ loop.depth }}{{ loop.depth0 }}{% if node.c %}({{ loop(node.c) }}){% endif %}{% endfor %}
{% for c in 'añ👍' %}[{{ c }}]{% endfor %} {% for i in range(3, 0, -1) %}{{ i }}{% endfor %} {% for x in (1, 2) %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}
{% set ns = namespace(n=0, found=false) %}{% for i in xs %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }} {{ ns['n'] }} {{ ns.nope }}| {{ ns.found }}
{% set ns = namespace() %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% set ns = namespace(log='') %}{% for i in [1, 2, 3] if i != ns.skip %}{% set ns.skip = 2 %}{{ i }}{{ loop.last }}{% endfor %}
{% if a > 10 %}A{% elif a > 5 %}B{% else %}C{% endif %}{% if n %}x{% endif %}{% if missing %}y{% endif %}{% if not missing %}z{% endif %}
{% if t %}{% set y = 5 %}{% endif %}{{ y }} {% if n %}{% set w = 5 %}{% endif %}{{ w }}|
{% set p, q = 1, 2 %}{{ p }}{{ q }} {% set (p, q) = (q, p) %}{{ p }}{{ q }} {% set r = 1, 2 %}{{ r }}
{% set block %}in {{ a }}!{% endset %}[{{ block }}] {% set up | upper %}abc{% endset %}{{ up }} {% set two | upper | replace('B', '-') %}abc{% endset %}{{ two }}
{% set block %}{% set inner = 3 %}{{ inner }}{% endset %}{{ block }}{{ inner }}|
{% with q = 5, r = a %}{{ q }}{{ r }}{% endwith %}{{ q }}| {% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}|
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | upper %}aaa{% endfilter %}
{% macro m(x, y=2, z='k') %}<{{ x }}{{ y }}{{ z }}>{% endmacro %}{{ m(1) }}{{ m(1, 5) }}{{ m(1, z=3) }}{{ m(x='q', y='w') }}{{ m() }}
{% macro m(x) %}{{ varargs }}{{ kwargs }}{{ x }}{% endmacro %}{{ m(1, 2, 3, k=4) }} {{ m.name }}
{% macro outer() %}[{{ caller() }}]{% endmacro %}{% call outer() %}body{% endcall %}
{% macro each(items) %}{% for i in items %}{{ caller(i) }},{% endfor %}{% endmacro %}{% call(v) each([1, 2]) %}<{{ v }}>{% endcall %}
{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro show(v, level=0) %}{% if v is mapping %}{{ '{' }}{% for k, x in v.items() %}{{ k }}:{{ show(x, level + 1) }};{% endfor %}{{ '}' }}{% elif v is iterable and v is not string %}[{% for x in v %}{{ show(x, level + 1) }},{% endfor %}]{% else %}{{ level }}{{ v }}{% endif %}{% endmacro %}{{ show(people) }}
{% macro early(x) %}{{ later(x) }}{% endmacro %}{% macro later(x) %}L{{ x }}{% endmacro %}{{ early(3) }}
{% set g = 'outer' %}{% macro reads() %}{{ g }}{% endmacro %}{% set g = 'changed' %}{{ reads() }}
{% macro sets() %}{% set g2 = 1 %}{% endmacro %}{{ sets() }}{{ g2 }}|
{% macro defaults(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ defaults('x') }}
{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(1) }} {{ m is callable }}
{% raw %}{{ not }} {% if %} {# x #}{% endraw %} {{ a }}
{# comment {{ a }} {% if %} #}x{#- another -#} y
{% generation %}gen {{ a }}{% endgeneration %} {% print a, b %} {% block main %}in block{% endblock %}
{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}
{% set j = joiner(' | ') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}
{{ strftime_now('%d %b %Y %H:%M') }}
{% for m in people | selectattr('age', 'gt', 30) %}{{ m.name }}{{ loop.index }}{% endfor %}
{% set l = [] %}{% for x in xs %}{% set l = l + [x] %}{% endfor %}{{ l }}
{% for x in xs: %}{{ x }}{% endfor %}{% if a: %}ok{% endif %}
{% set o = namespace(v=[]) %}{% for x in xs %}{% set o.v = o.v + [x * 2] %}{% endfor %}{{ o.v }} {% set o.a, o.b = 1, 2 %}{{ o.a + o.b }}
{% for x in xs | sort %}{{ x }}{% endfor %}{% for x in xs | reverse %}{{ x }}{% endfor %}{% for x in xs[::-1] %}{{ x }}{{ loop.length }}{% endfor %}
{% for x in [1,2,3] %}{% for y in [1,2,3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
'''

FILTERS = r'''
{{ s | upper }} {{ s | lower }} {{ s | title }} {{ s | capitalize }} {{ 'foo-bar (baz) qUX' | title }} {{ u | upper }} {{ u | lower }} {{ u | title }}
[{{ ws | trim }}] [{{ 'xxaxx' | trim('x') }}] [{{ ' a ' | trim }}] {{ 5 | trim }} {{ missing | trim }}|
{{ s | length }} {{ xs | length }} {{ d | count }} {{ missing | length }} {{ emoji | length }} {{ '' | length }}
{{ xs | join }} {{ xs | join(', ') }} {{ people | join('; ', attribute='name') }} {{ 'abc' | join('-') }} {{ [1, none, 'x', 2.0] | join('|') }}
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 'abc' | replace('', '-') }} {{ 'abc' | replace('', '-', 2) }} {{ 'aaa' | replace('aa', 'b') }} {{ 123 | replace(2, 'x') }} {{ s | replace('l', '') }}
{{ missing | default('d') }} {{ missing | d }}| {{ e | default('x') }}| {{ e | default('x', true) }} {{ n | default('x', boolean=True) }} {{ 0 | d(5, true) }} {{ d.nope | default('q') }}
{{ xs | first }} {{ xs | last }} {{ s | first }} {{ s | last }} {{ [] | first }}| {{ [] | last }}| {{ d | first }} {{ range(4) | last }} {{ missing | first }}|
{{ 'abc' | list }} {{ d | list }} {{ (1, 2) | list }} {{ xs | list }} {{ missing | list }} {{ range(3) | list }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='tags', default=[]) | list }} {{ words | map('upper') | join(',') }} {{ xs | map('string') | list }} {{ people | map(attribute='tags.0', default='-') | list }} {{ words | map('replace', 'p', 'P') | list }}
{{ xs | select('odd') | list }} {{ xs | reject('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ xs | select('gt', 1) | list }} {{ xs | select('in', [1, 2]) | list }} {{ words | select('equalto', 'fig') | list }}
{{ people | selectattr('age', 'equalto', 31) | map(attribute='name') | list }} {{ people | rejectattr('age', '==', 31) | map(attribute='name') | list }} {{ people | selectattr('tags') | list | length }} {{ people | selectattr('tags', 'defined') | list | length }} {{ people | rejectattr('tags', 'undefined') | map(attribute='name') | first }}
{{ xs | sort }} {{ xs | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }} {{ people | sort(attribute='city', reverse=true) | map(attribute='name') | list }}
{{ words | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ [1, 1.0, true, '1'] | unique | list }} {{ people | unique(attribute='city') | map(attribute='name') | list }}
{{ xs | reverse | list }} {{ 'abc' | reverse }} {{ 'añb' | reverse }} {{ (1, 2) | reverse | list }}
{{ d | items | list }} {{ missing | items | list }} {{ d | dictsort }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort(true) }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort(by='value', reverse=true) }}
{{ 5 | string }} {{ none | string }} {{ [1] | string }} {{ 1.0 | string ~ 'x' }} {{ s | string | length }}
{{ '42' | int }} {{ '4x' | int }} {{ '4x' | int(9) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ '3.9' | int }} {{ '0x1f' | int(0, 16) }} {{ 'ff' | int(base=16) }} {{ true | int }} {{ none | int }} {{ ' 7 ' | int }} {{ '1_0' | int }} {{ '1e3' | int }} {{ [] | int(-1) }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 'x' | float(2) }} {{ 3 | float }} {{ numf | float }} {{ '1e3' | float }} {{ 'inf' | float }} {{ true | float }} {{ none | float }}
{{ -5 | abs }} {{ -2.5 | abs }} {{ (-5) | abs }} {{ b | abs }} {{ true | abs }}
{{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 42.4 | round(method='ceil') }} {{ 42.55 | round(1, 'floor') }} {{ 42 | round }} {{ 1234 | round(-2) }} {{ 1250 | round(-2) }} {{ 42.55 | round | int }} {{ 0.125 | round(2) }} {{ 7 | round(0, 'ceil') }}
{{ xs | sum }} {{ people | sum(attribute='age') }} {{ xs | sum(start=10) }} {{ [] | sum }} {{ [0.1, 0.2] | sum }} {{ [[1], [2]] | sum(start=[]) }}
{{ xs | min }} {{ xs | max }} {{ words | min }} {{ words | max }} {{ people | max(attribute='age') }} {{ [] | max }}| {{ ['b', 'A'] | min(case_sensitive=true) }}
{{ range(7) | batch(3) | list }} {{ range(7) | batch(3, 'x') | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, 'x') | list }} {{ [] | batch(2) | list }}
{% for g in people | groupby('city') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join('+') }};{% endfor %}{% for c, l in people | groupby('age') %}{{ c }}={{ l | length }};{% endfor %}{% for c, l in people | groupby('city', case_sensitive=true) %}{{ c }}{{ l | length }}{% endfor %}
{{ people | groupby('tags', default='none') | map('first') | list | length if false else 'skip' }} {{ people | groupby('nope', default='-') | length }}
{{ lines | indent }} {{ lines | indent(2, true) }} {{ lines | indent(2, blank=true) }} {{ lines | indent('> ', first=true, blank=true) }} {{ 'one' | indent }}
{{ html | escape }} {{ html | e }} {{ '<a>' | safe }} {{ html | forceescape }}
{{ 'a b-c d_e, f!' | wordcount }} {{ '' | wordcount }} {{ 'Grüße an 日本' | wordcount }}
{{ '%s and %d' | format('x', 5) }} {{ '%(a)s-%(b)05.1f' | format(a=1, b=2.25) }} {{ fmt | format(1, 2) }}
{{ 'a b&c/d?é' | urlencode }} {{ {'q': 'a b', 'r': '1/2'} | urlencode }} {{ [('x', 1)] | urlencode }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '!', 0) }}
[{{ 'ab' | center(7) }}] [{{ 'abc' | center(8) }}] {{ '<p>a  <b>b</b>\n c</p>' | striptags }}
{{ 1 | filesizeformat }} {{ 999 | filesizeformat }} {{ 13000 | filesizeformat }} {{ 4100000 | filesizeformat }} {{ 4096 | filesizeformat(true) }} {{ 1000000000000 | filesizeformat }}
{{ d | attr('items') is callable }} {{ d | attr('x') }}| {{ s | attr('nope') }}|
{{ d | tojson }} {{ nested | tojson }} {{ s | tojson }} {{ n | tojson }} {{ t | tojson }} {{ f | tojson }} {{ big | tojson }} {{ floats | tojson }}
{{ people | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[], {}] | tojson(indent=1) }} {{ {'a': [1, {'b': 2}]} | tojson(indent=0) }} {{ [1] | tojson(indent='--') }}
{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }} {{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':')) }} {{ [1, 2] | tojson(separators=(' ; ', '='), indent=1) }}
{{ html | tojson }} {{ emoji | tojson(ensure_ascii=true) }} {{ '\x7f\x01\b\f' | tojson }} {{ '\x7f\x01' | tojson(ensure_ascii=true) }} {{ '\u2028é' | tojson(true) }}
{{ {1: 'a', none: 'b', true: 'c', 2.5: 'd'} | tojson }} {{ (1, 2) | tojson }} {{ {'k': (1,)} | tojson }}
{{ [1, 2, 3] | first + 1 }} {{ xs | length > 2 }} {{ -1 | abs }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 2 ** 2 | float }}
{{ xs | map('float') | map('int') | sum }} {{ words | map('length') | list }} {{ words | map('first') | map('upper') | join }} {{ [[1, 2], [3]] | map('sum') | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}
{% if words | select('eq', 'nope') %}generators are true{% endif %} {% set g = xs | map('string') %}{{ g | first }}{{ g | list }}{{ g | list }} {{ 1 in (xs | select) }}
{{ xs | select('divisibleby', 2) | list }} {{ [missing, 1] | select('defined') | list }} {{ ['a', 1] | select('string') | list }} {{ [none, 1] | reject('none') | list }}
'''

TESTS = r'''
{{ a is defined }} {{ missing is defined }} {{ missing is undefined }} {{ d.nope is defined }} {{ d.x is defined }} {{ missing is not defined }} {{ n is defined }}
{{ n is none }} {{ a is none }} {{ n is not none }} {{ missing is none }}
{{ s is string }} {{ a is string }} {{ a is number }} {{ t is number }} {{ f is number }} {{ a is integer }} {{ t is integer }} {{ f is float }} {{ a is float }}
{{ t is boolean }} {{ a is boolean }} {{ t is true }} {{ t is false }} {{ 1 is true }} {{ false is false }}
{{ d is mapping }} {{ xs is mapping }} {{ xs is sequence }} {{ s is sequence }} {{ d is sequence }} {{ a is sequence }} {{ xs is iterable }} {{ a is iterable }} {{ d is iterable }} {{ missing is iterable }} {{ range(2) is sequence }} {{ d.items() is sequence }}
{{ a is odd }} {{ a is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ a is eq 7 }} {{ a is equalto(7) }} {{ a is ne 7 }} {{ a is lt 8 }} {{ a is gt(6) }} {{ a is le 7 }} {{ a is ge 8 }}
{{ a is sameas a }} {{ none is sameas none }} {{ 1 is sameas true }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'Abc' is lower }} {{ '123' is upper }}
{{ 1 is in xs }} {{ 'x' is in d }} {{ 9 is not in xs }} {{ range is callable }} {{ a is callable }} {{ s.upper is callable }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ s is escaped }}
{{ 'b' if missing is defined else 'c' }} {{ a is defined and a > 3 }} {{ a is string or d is mapping }} {{ not a is string }} {{ (a is odd) and not (a is even) }}
'''

METHODS = r'''
[{{ ws.strip() }}] [{{ ws.lstrip() }}] [{{ ws.rstrip() }}] {{ 'xxabxx'.strip('x') }} {{ 'xyabyx'.lstrip('yx') }} {{ 'abc\n\n'.rstrip('\n') }} {{ 'abc'.strip(none) }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a::b'.split('::') }} {{ 'x</think>y</think>z'.split('</think>')[-1] }} {{ 'a,b'.split(sep=',', maxsplit=0) }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\x0bb\u2028c'.splitlines() }}
{{ s.startswith('He') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.endswith('') }} {{ s.startswith('ell', 1) }} {{ s.startswith('x') }} {{ 'abc'.endswith('b', 0, 2) }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'ab'.replace('', '.') }} {{ 'aaaa'.replace('a', 'bb', 2) }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ "they're o'neil".title() }} {{ u.upper() }} {{ u.lower() }} {{ u.capitalize() }} {{ 'ǆx ǆ'.title() }}
{{ s.find('l') }} {{ s.find('zz') }} {{ s.rfind('l') }} {{ s.index('W') }} {{ s.find('l', 4) }} {{ s.find('') }} {{ s.count('l') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('ö') }} {{ s.find('r') }} {{ 'abcabc'.find('c', 3, 5) }} {{ 'abcabc'.rfind('b', 0, 4) }} {{ 'abcabc'.find('a', -3) }}
{{ ', '.join(['a', 'b']) }} {{ ''.join('xyz') }} {{ '-'.join([]) }}| {{ ', '.join(d) }}
{{ '{} and {}'.format(1, 'x') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{name:>5}|{v:.2f}|{w:05d}'.format(name='ab', v=1.005, w=42) }} {{ '{{}}'.format() }} {{ '{0[x]} {0[y][1]}'.format(d) }} {{ '{!r} {:<4}|{:^5}|{:*>4}|{:,}|{:x}|{:+d}|{:%}'.format('q', 'a', 'b', 'c', 1234567, 255, 5, 0.25) }}
{{ '%s' % 'x' }} {{ '%s-%s' % (1, 2) }} {{ '%5d|%-5d|%05d|%+d' % (1, 2, 3, 4) }} {{ '%.2f %e %g' % (1.005, 12345.678, 0.0001) }} {{ '%x %X %o' % (255, 255, 8) }} {{ '%r' % 'a' }} {{ '%%' % () }} {{ '%(x)s' % d }} {{ '%s' % [1] }} {{ '%10s|%-10s|' % ('a', 'b') }} {{ '%.2s' % 'abc' }} {{ '%d' % 3.9 }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isalpha() }} {{ 'é'.isalpha() }} {{ '½'.isnumeric() }} {{ 'a'.isascii() }}
{{ 'ab'.ljust(4, '.') }}| {{ 'ab'.rjust(4) }} {{ 'ab'.center(5, '*') }} {{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ 'abc'.center(6, '-') }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removeprefix('y') }}
{{ xs.index(1) }} {{ xs.count(3) }} {{ (1, 2, 1).count(1) }} {{ (1, 2).index(2) }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | length }} {{ 'x' in d.keys() }} {{ d.copy() == d }} {{ xs.copy() }}
{{ s.nope }}| {{ s.nope is defined }} {{ xs.nope }}| {{ xs.append }}| {{ s['upper']() }} {{ d['get']('x') }} {{ s.__class__ }}|
{{ 'a'.upper().lower().replace('a', 'b').strip().split('x')[0] }} {{ ('x' ~ 'y').upper() }} {{ [1, 2].index(2) }} {{ {'k': 'v'}.get('k') }} {{ {'k': 'v'}.items() | first }} {{ (people | first).name.upper() }}
'''

WHITESPACE = [
    "{% for m in xs %}\n    {% if m == 1 %}\nU: {{ m }}\n    {% else %}\nA: {{ m }}\n    {% endif %}\n{% endfor %}\nEND\n",
    "a {{ 1 }}\n  {{ 2 }}\n{# note #}\nb\n", "{%- if true -%}\n  x  \n{%- endif -%}\n  y",
    "  {%+ if true %}x{% endif +%}\ny", "X\n\n", "X\n", "\n\nX", "  {# c #}  \n  {% set x = 1 %}  \n x",
    "a\r\nb\rc{% if t %}\r\nd\r\n{% endif %}\r\n", "  {{- 1 -}}  x {{+ 2 }}", "a\n\n  {%- if t %}\n b{% endif %}\n\nc",
    "{% if t -%}\n\n   x\n{%- endif %}  \ny", "x {%- raw -%}  {{ a }}  {%- endraw -%}  y", "{% raw %}\n{{ a }}\n{% endraw %}\nz",
    "a  {#- c -#}  b {# c -#}  d  {#- c #} e", "  {#+ c +#}\nx", "{% if t %} {% endif %}|", "\t{% if t %}\tx\t{% endif %}\t\ny",
    "line {% if t %}\nsame line tag\n{% endif %} after", "{{ 'x' }}\n{{ 'y' }}\n", "{%if t%}tight{%endif%}{{a}}{{-b-}}",
    "{% set x = 'a\nb' %}{{ x }}", "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}", "{{ '}}' }}{{ '%}' }}{{ \"{{\" }}",
    "{% for x in xs -%}\n  {{ x }}\n{%- endfor %}", "   {% if t %}\n   a\n   {% endif %}\n   b",
    "a{% if t %}\n\n\nb{% endif %}\n\n\nc", "{{ 1 }}   \n   {%- set q = 2 -%}   \n {{ q }}", "\u3000{%- if t %}x{% endif %}\u00a0{% if t %}\ny{% endif %}",
    "{% macro m() -%}\n  text\n{%- endmacro %}\n[{{ m() }}]\n", "a {% set x %}\n  b\n  {% endset %}\n[{{ x }}]", "{# multi\nline #}\nx {# y #} z",
]

FAILING = [
    "{{ missing.x }}", "{{ d.nope.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ a() }}", "{{ s.nope() }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}",
    "{{ missing + 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ none + 'x' }}", "{{ [1] + 'x' }}", "{{ [1] + (1,) }}",
    "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ missing < 1 }}", "{{ 1 in 5 }}", "{{ 1 in 'abc' }}", "{{ -'a' }}", "{{ xs | sort | foo }}",
    "{{ foo | nofilter }}", "{{ a is notest }}", "{% if %}x{% endif %}", "{% if a %}x", "{% endif %}", "{% for x in %}{% endfor %}",
    "{% for x xs %}{% endfor %}", "{% unknown %}", "{{ a", "{{ }}", "{% raw %}x", "{# x", "{{ 'abc }}", "{{ (1, 2 }}", "{{ 1 2 }}",
    "{{ a. }}", "{{ a[ }}", "{{ 1 + 2 ~ 3 + 4 }}", "{{ a | }}", "{{ {1} }}", "{% set 1 = 2 %}", "{% set true = 1 %}", "{% set a.b = 1 %}",
    "{% set d.x = 5 %}", "{% macro %}x{% endmacro %}", "{% macro m(a, b=1, c) %}{% endmacro %}", "{% macro m(x) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(x) %}{% endmacro %}{{ m(y=2) }}", "{{ raise_exception('stop ' ~ a) }}", "{% for x in a %}{% endfor %}", "{% for x, y in xs %}{% endfor %}",
    "{{ xs | first.x }}", "{{ d | join(1, 2, 3) }}", "{{ s | default(nope=1) }}", "{{ s.split('') }}", "{{ s.index('zz') }}", "{{ xs.index(99) }}",
    "{{ xs.append(1) }}", "{% set x = d.update({'a': 1}) %}", "{{ d.pop('x') }}", "{{ missing | tojson }}", "{{ range | tojson }}", "{{ range(3) | tojson }}",
    "{{ {(1, 2): 3} | tojson }}", "{{ range(1000000) | length }}", "{{ range(1, 2, 0) }}", "{{ ', '.join([1]) }}", "{{ a.b.c }}", "{{ n.foo.bar }}",
    "{{ xs['a'].b }}", "{{ s.__class__.__mro__ }}", "{{ '%d' % 'x' }}", "{{ '%s %s' % 'x' }}", "{{ '%s' % (1, 2) }}", "{{ '{}'.format() }}", "{{ '{x}'.format(y=1) }}",
    "{{ '{' .format(1) }}", "{{ {[]: 1} }}", "{{ xs | items | list }}", "{{ 5 | list }}", "{{ none | length }}", "{{ 5 | length }}", "{{ ['a', 1] | sort }}",
    "{{ ['a', 1] | max }}", "{{ 'a' | sum }}", "{{ xs | batch }}", "{{ 'x' | round }}", "{{ loop.index }}", "{% break %}", "{{ (xs | map('upper')) | length }}",
    "{{ xs | map('nofilter') | list }}", "{{ xs | select('notest') | list }}", "{{ xs | map | list }}", "{{ none | join }}", "{{ none.upper() }}",
    "{% for x in xs %}{{ loop(xs) }}{% endfor %}", "{% call d %}x{% endcall %}", "{% call a() %}x{% endcall %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}",
    "{{ namespace(_x=1) }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ a ? b : c }}", "{{ a && b }}", "{{ xs[::0] }}", "{{ missing[1:] }}",
    "{{ strftime_now() }}", "{{ 'a' is odd }}", "{{ missing | int }}", "{{ missing | abs }}", "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}",
    "{{ (a if false).x }}", "{% if a == %}{% endif %}", "{{ not }}", "{% set x %}abc", "{% for x in xs %}{% else %}{% else %}{% endfor %}", "{{ 08 }}", "{{ a is }}", "{{ dict(1) }}",
]


def statements(text):
    return [line for line in text.strip("\n").split("\n") if line]


SNIPPETS = []
for group in (PRINTING, STATEMENTS, FILTERS, TESTS, METHODS):
    SNIPPETS += statements(group)
SNIPPETS += WHITESPACE + FAILING
