// Unit tests of the page's modules that need no browser. `page_units.py` runs them under node, or in Chromium where there is no node.
import { Branches, describeDrafts } from './page/branches.js';
import { END_OF_CALL, joinCalls, prettyJson, splitCalls } from './page/calls.js';
import { answerTokens } from './page/context.js';
import { branchOf, Conversations, fileName, newConversation, toJson, toMarkdown } from './page/conversations.js';
import { duration } from './page/dom.js';
import { safeHref } from './page/inline.js';
import { parseMarkdown } from './page/markdown.js';
import { parseMath } from './page/math.js';
import { ORIGINS, originsFor } from './page/origins.js';
import { familyOf, highlight } from './page/syntax.js';
import { splitThinking, withoutThinking } from './page/thinking.js';
import { scoresOf, Tokens } from './page/tokens.js';

const tests = [];
const test = (name, body) => tests.push({ name, body });

function equal(found, expected) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  if (a !== b) throw new Error(`found ${a}, expected ${b}`);
}

function check(condition, what) {
  if (!condition) throw new Error(what);
}

// A tree as text: p(one em(two)).
function outline(text) {
  const SHORT = { paragraph: 'p', heading: 'h', quote: 'q', strong: 'b', break: 'br' };
  const list = (nodes) => nodes.map(show).join('');
  const show = (node) => {
    if (node.type === 'text') return node.value ?? text.slice(node.start, node.end);
    if (node.type === 'break') return '/';
    const name = (SHORT[node.type] ?? node.type) + (node.level ?? '') + (node.language ? `:${node.language}` : '') + (node.open ? '!' : '');
    if (node.lines) return `${name}(${node.lines.map(({ start, end }) => text.slice(start, end)).join('|')})`;
    if (node.items) {
      const items = node.items.map(({ task, children }) => `${task === null ? '' : task ? 'x' : 'o'}${list(children)}`);
      return `${node.ordered ? `ol${node.first}` : 'ul'}${node.tight ? '' : '~'}(${items.join(';')})`;
    }
    if (node.head) return `table(${[node.head, ...node.rows].map((row) => row.map(list).join(',')).join(';')})`;
    if (node.tex !== undefined) return `$${node.tex.trim()}$`;
    return `${name}${node.href ? `[${node.href}]` : ''}(${list(node.children ?? [])})`;
  };
  return list(parseMarkdown(text));
}

function everyNode(nodes, visit) {
  for (const node of nodes ?? []) {
    visit(node);
    everyNode(node.children, visit);
    everyNode(node.head?.flat(), visit);
    everyNode(node.rows?.flat(2), visit);
    everyNode(node.items?.flatMap(({ children }) => children), visit);
  }
}

// ---- Markdown ----

const MARKDOWN = [
  ['plain', 'p(plain)'],
  ['one\ntwo\n\nthree', 'p(one/two)p(three)'],
  ['# A *b*\n## B ##', 'h1(A em(b))h2(B)'],
  ['Title\n=====\ntext', 'h1(Title)p(text)'],
  ['#hashtag', 'p(#hashtag)'],
  ['#### 7', 'p(#### 7)'],
  ['so 3 + 4\n#### $1,250.50', 'p(so 3 + 4)p(#### $1,250.50)'],
  ['#### Seven', 'h4(Seven)'],
  ['**b** __b__ *i* _i_ ***both*** ~~gone~~', 'p(b(b) b(b) em(i) em(i) em(b(both)) del(gone))'],
  ['snake_case_name and 2 * 3 * 4', 'p(snake_case_name and 2 * 3 * 4)'],
  ['*a **b** c*', 'p(em(a b(b) c))'],
  ['**unclosed *also', 'p(**unclosed *also)'],
  ['`a*b*` ``x ` y``', 'p(code(a*b*) code(x ` y))'],
  ['`unclosed', 'p(`unclosed)'],
  ['\\*no\\* \\\\ \\a', 'p(*no* \\ \\a)'],
  ['```js\nlet a = 1;\n\n  b\n```\nafter', 'code:js(let a = 1;||  b)p(after)'],
  ['```\nopen', 'code!(open)'],
  ['````md\n```\ninner\n```\n````\nout', 'code:md(```|inner|```)p(out)'],
  ['~~~\n```\n~~~', 'code(```)'],
  ['  ```\n  a\n    b\n  ```', 'code(a|  b)'],
  ['    indented\n\n    code', 'code(indented||code)'],
  ['- a\n- b\n  - c\n- d', 'ul(p(a);p(b)ul(p(c));p(d))'],
  ['1. a\n2. b\n   text', 'ol1(p(a);p(b/text))'],
  ['3) c\n4) d', 'ol3(p(c);p(d))'],
  ['- a\n\n- b', 'ul~(p(a);p(b))'],
  ['- [ ] a\n- [x] b', 'ul(op(a);xp(b))'],
  ['1. **A**:\n   ```py\n   x\n   ```\n2. B', 'ol1(p(b(A):)code:py(x);p(B))'],
  ['text\n- item', 'p(text)ul(p(item))'],
  ['in 1984. or\n5. five', 'p(in 1984. or/5. five)'],
  ['> a\n> > b\n\nc', 'q(p(a)q(p(b)))p(c)'],
  ['---\n***\n_ _ _', 'rule()rule()rule()'],
  ['| a | b |\n|---|:-:|\n| 1 | `x` |\n| 2\\|3 |', 'table(a,b;1,code(x);2|3,)'],
  ['a | b\nno table', 'p(a | b/no table)'],
  ['text:\n| a |\n|---|\n| 1 |', 'p(text:)table(a;1)'],
  ['<b>x</b> <script>alert(1)</script>', 'p(<b>x</b> <script>alert(1)</script>)'],
  ['a<br>b<br/>c', 'p(a/b/c)'],
  ['&lt;b&gt; &amp;amp; &#65; &#x41; &nope;', 'p(<b> &amp; A A &nope;)'],
  ['[t](https://e.org/a_b "title") ![i](https://e.org/i.png)', 'p(link[https://e.org/a_b](t) image[https://e.org/i.png](i))'],
  ['[*t*](https://e.org/x(y)) [r][1] [x]', 'p(link[https://e.org/x(y)](em(t)) [r][1] [x])'],
  ['<https://e.org> see https://e.org/a. (https://e.org/b) **https://e.org**', 'p(link[https://e.org](https://e.org) see '
    + 'link[https://e.org/a](https://e.org/a). (link[https://e.org/b](https://e.org/b)) b(link[https://e.org](https://e.org)))'],
  ['Costs $5 and $10, or $5-$10.', 'p(Costs $5 and $10, or $5-$10.)'],
  ['so $x_i^2$ and \\(y\\)', 'p(so $x_i^2$ and $y$)'],
  ['is\n$$\na*b*c\n$$\nand', 'p(is)$a*b*c$p(and)'],
  ['\\[ a \\]\n$$b$$', '$a$$b$'],
  ['$$\nnever closed\n\n*next*', 'p($$/never closed)p(em(next))'],
  ['`$a$` and \\$5$', 'p(code($a$) and $5$)'],
  ['crlf\r\n- a\r\n- b', 'p(crlf)ul(p(a);p(b))'],
  ['', ''],
  ['\n\n \n', ''],
];
for (const [text, expected] of MARKDOWN) test(`markdown ${JSON.stringify(text)}`, () => equal(outline(text), expected));

test('markdown: text nodes are ranges of the source, in order, inside it', () => {
  for (const [text] of MARKDOWN) {
    let last = 0;
    everyNode(parseMarkdown(text), (node) => {
      if (node.type !== 'text') return;
      check(node.start >= last && node.end >= node.start && node.end <= text.length, `${node.start}..${node.end} in ${JSON.stringify(text)}`);
      last = node.end;
    });
  }
});

test('markdown: a range of a longer text gives the same tree, moved', () => {
  for (const [text] of MARKDOWN) {
    const around = `# before\n${text}\n> after`;
    const moved = JSON.stringify(parseMarkdown(around, 9, 9 + text.length), (name, value) => (name === 'start' || name === 'end' ? value - 9 : value));
    check(moved === JSON.stringify(parseMarkdown(text), (name, value) => (name === 'start' || name === 'end' ? value - 0 : value)), text);
  }
});

test('markdown: every prefix of a text can be read', () => {
  const all = MARKDOWN.map(([text]) => text).join('\n\n');
  for (let length = 0; length <= all.length; ++length) parseMarkdown(all, 0, length);
});

// ---- Hostile text ----

const BAD_LINKS = ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\tscript:alert(1)', 'java\nscript:alert(1)', '\u0001javascript:alert(1)',
  'vbscript:x', 'data:text/html,<script>alert(1)</script>', 'data:image/svg+xml,<svg onload=alert(1)>', 'file:///etc/passwd', 'blob:x', '//evil.org', '/metrics',
  'page', '#x', 'https:evil', 'https:/evil', 'http://', 'https:\\\\evil.org', 'mailto:?subject=x', 'about:blank', 'view-source:x', 'ftp://e.org', ''];

test('links: only http, https and mailto', () => {
  for (const href of BAD_LINKS) {
    equal(safeHref(href), null);
    for (const text of [`[a](${href})`, `[a](<${href}>)`, `![a](${href})`, `<${href}>`, `[a](${href} "t")`]) {
      everyNode(parseMarkdown(text), (node) => check(node.href === undefined, `${JSON.stringify(text)} leads to ${node.href}`));
    }
  }
  for (const href of ['https://e.org', 'HTTP://E.ORG/x?y=1#z', 'mailto:a@e.org']) equal(safeHref(href), href);
});

test('hostile: entities in an address are not decoded into another protocol', () => {
  for (const text of ['[a](&#106;avascript:alert(1))', '[a](javascript&colon;alert(1))', '[a](%6aavascript:alert(1))']) {
    everyNode(parseMarkdown(text), (node) => check(node.href === undefined, node.href));
  }
});

const TYPES = new Set(['paragraph', 'heading', 'code', 'math', 'quote', 'list', 'table', 'rule', 'text', 'strong', 'em', 'del', 'link', 'image', 'break']);
const HOSTILE = {
  script: '<script>alert(1)</script><img src=x onerror=alert(1)><svg/onload=alert(1)><iframe srcdoc="<script>alert(1)</script>">',
  attributes: '<a href="javascript:alert(1)" onclick=alert(1)>x</a> [x](https://e.org" onclick="alert(1))',
  comment: '<!-- --><style>*{display:none}</style><base href=//evil><meta http-equiv=refresh content=0>',
  fences: '```\n````\n```js\n~~~\n<script>\n````\n``` `x`\n',
  unclosed: '**a *b `c ~~d [e](https://e.org ![f $g \\(h $$i \\[j <k &l | m\n> n\n- o\n```p',
  nothing: '\u0000\u0001\u202e\ufeff\u2028\ud800',
};
// A hundred thousand characters of what costs most.
const LONG = {
  word: 'a'.repeat(100_000), stars: '*'.repeat(100_000), pairs: '*a '.repeat(17_000) + 'a* '.repeat(17_000), under: '_a'.repeat(50_000), mixed: '**a*b_c~~[`'.repeat(9_000),
  open: '['.repeat(50_000) + ']'.repeat(50_000), links: '[a]('.repeat(25_000), images: '![![a](https://x)'.repeat(6_000), good: '[a](https://e.org)'.repeat(5_500),
  ticks: Array.from({ length: 440 }, (_, i) => '`'.repeat(i + 1)).join(' '), dollars: '$a '.repeat(33_000), parens: '\\('.repeat(50_000), squares: '\\[\n'.repeat(33_000),
  formulas: '$$\n'.repeat(33_001), quotes: '>'.repeat(100_000), spaces: ' '.repeat(100_000), dashes: '- '.repeat(50_000), numbers: '1. '.repeat(33_000),
  nested: Array.from({ length: 440 }, (_, i) => `${' '.repeat(i)}- x`).join('\n'), bars: `${'|'.repeat(50_000)}\n${'|-'.repeat(25_000)}`, lines: 'a\n'.repeat(50_000),
  addresses: 'https://a'.repeat(11_000), and: '&'.repeat(100_000), less: '<'.repeat(100_000), fences: '```\n'.repeat(25_001), tabs: 'a\n\t'.repeat(33_000),
  close: ')'.repeat(50_000), address: `https://a${')'.repeat(90_000)}`,
};

for (const [name, text] of Object.entries({ ...HOSTILE, ...LONG })) {
  test(`hostile: ${name}`, () => {
    const begin = performance.now();
    const tree = parseMarkdown(text);
    const seconds = (performance.now() - begin) / 1000;
    check(seconds < 10, `${text.length} characters took ${seconds.toFixed(1)} s`); // milliseconds, but for a busy machine
    let deepest = 0;
    const visit = (nodes, depth) => {
      deepest = Math.max(deepest, depth);
      for (const node of nodes ?? []) {
        check(TYPES.has(node.type), `a node of type ${node.type}`);
        check(node.href === undefined || safeHref(node.href) !== null, node.href);
        visit(node.children, depth + 1);
        visit(node.items?.flatMap(({ children }) => children), depth + 1);
      }
    };
    visit(tree, 0);
    check(deepest < 200, `${deepest} deep`);
  });
}

// ---- Mathematics ----

function mathOutline(tex, display) {
  const show = ({ tag, text, children }) => (text !== undefined ? text : `${tag.replace(/^m/, '')}(${children.map(show).join(' ')})`);
  const tree = parseMath(tex, display);
  return tree && show(tree);
}

const MATH = [
  ['x^2', 'ath(sup(x 2))'],
  ['x_i^2', 'ath(subsup(x i 2))'],
  ['\\frac{a}{b}', 'ath(frac(row(a) row(b)))'],
  ['\\frac12', 'ath(frac(1 2))'],
  ['\\sqrt{x}', 'ath(sqrt(row(x)))'],
  ['\\sqrt[3]{x}', 'ath(root(row(x) 3))'],
  ['\\alpha\\le\\Omega', 'ath(row(α ≤ Ω))'],
  ['a-b', 'ath(row(a − b))'],
  ['f\'(x)', 'ath(row(sup(f ′) ( x )))'],
  ['3.14', 'ath(3.14)'],
  ['\\text{if } x', 'ath(row(if\u00a0 x))'],
  ['\\mathbb{R}', 'ath(row(ℝ))'],
  ['\\mathbf{v}', 'ath(row(𝐯))'],
  ['\\left( x \\right]', 'ath(row(( x ]))'],
  ['\\{a\\}', 'ath(row({ a }))'],
  ['\\begin{pmatrix}a&b\\\\c&d\\end{pmatrix}', 'ath(row(( table(tr(td(row(a)) td(row(b))) tr(td(row(c)) td(row(d)))) )))'],
  ['\\begin{cases}1&x\\\\\\end{cases}', 'ath(row({ table(tr(td(row(1)) td(row(x))))))'],
  ['\\hat{x}', 'ath(over(row(x) ^))'],
  ['\\sin x', 'ath(row(sin x))'],
  ['50\\%', 'ath(row(50 %))'],
  ['a % comment\nb', 'ath(row(a b))'],
  ['\\unknown{x}', 'ath(row(\\unknown row(x)))'],
  ['', 'ath(row())'],
];
for (const [tex, expected] of MATH) test(`math ${tex}`, () => equal(mathOutline(tex), expected));
test('math: limits go below and above in formulas of their own line', () => {
  equal(mathOutline('\\sum_{i}^n', true), 'ath(underover(∑ row(i) n))');
  equal(mathOutline('\\sum_{i}^n', false), 'ath(subsup(∑ row(i) n))');
  equal(mathOutline('\\int_0^1', true), 'ath(subsup(∫ 0 1))');
});
test('math: what cannot be read gives nothing', () => {
  for (const tex of ['{', '}', '{{{', '\\frac{a}', '\\left( x', '\\right)', '\\begin{pmatrix}a', '\\begin{nope}a\\end{nope}', 'x^', 'a & b', '\\sqrt[3', '\\', '{'.repeat(5000), 'x'.repeat(9000)]) {
    equal(parseMath(tex), null);
  }
});
test('math: every prefix can be read or gives nothing', () => {
  const all = MATH.map(([tex]) => tex).join(' + ');
  for (let length = 0; length <= all.length; ++length) parseMath(all.slice(0, length), true);
});
test('math: names of JavaScript are no commands', () => {
  for (const name of ['constructor', 'toString', 'hasOwnProperty', 'valueOf']) check(mathOutline(`\\${name}`).includes('\\'), name);
});
test('math: tags and attributes are of a fixed set; text stays text', () => {
  const tags = new Set();
  const attributes = new Set();
  const visit = (node) => {
    tags.add(node.tag);
    for (const name of Object.keys(node.attributes)) attributes.add(name);
    for (const child of node.children ?? []) visit(child);
  };
  for (const tex of [...MATH.map(([tex]) => tex), '\\text{<img src=x onerror=alert(1)>}', '\\href{javascript:alert(1)}{x}', '<script>alert(1)</script>']) visit(parseMath(tex, true));
  for (const tag of tags) check((/^(math|mrow|mi|mn|mo|mtext|mspace|mfrac|msqrt|mroot|msub|msup|msubsup|munder|mover|munderover|mtable|mtr|mtd)$/).test(tag), tag);
  for (const name of attributes) check((/^(display|mathvariant|stretchy|fence|accent|linethickness|width|class|displaystyle)$/).test(name), name);
});

// ---- Thinking ----

test('calls of tools', () => {
  const split = (text) => {
    const { text: range, calls } = splitCalls(text, 0, text.length);
    return [text.slice(...range), ...calls.map(({ name, shown, open }) => [name, shown, open])];
  };
  equal(split('no call'), ['no call']);
  const call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>';
  equal(split(`So:\n${call}\n${call}`), ['So:', ['add', '{\n  "a": 1\n}', false], ['add', '{\n  "a": 1\n}', false]]);
  equal(split('x <tool_call>\n{"name": "add", "arg'), ['x', ['add', '{"name": "add", "arg', true]]);
  equal(split('<tool_call>\n<function=f>\n<parameter=a>\n1\n2\n</parameter>\n<parameter=b>\nx'), ['', ['f', '{\n  "a": "1\\n2",\n  "b": "x"\n}', true]]);
  equal(prettyJson(' {"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  equal([prettyJson('5'), prettyJson('{"a"'), prettyJson('')], [null, null, null]);
  const first = joinCalls([{ index: 0, function: { name: 'add', arguments: '{"a"' } }], 0);
  const second = joinCalls([{ index: 0, function: { arguments: ': 1}' } }, { index: 1, function: { name: 'now', arguments: '{}' } }], first.count);
  equal(split(first.text + second.text + END_OF_CALL), ['', ['add', '{\n  "a": 1\n}', false], ['now', '{}', false]]);
});

test('thinking', () => {
  const split = (text, opened) => {
    const { thinking, answer, open } = splitThinking(text, opened);
    return [thinking && text.slice(...thinking), text.slice(...answer), open];
  };
  equal(split('plain'), [null, 'plain', false]);
  equal(split('<think>\nhm\n</think>\n\nyes'), ['hm', 'yes', false]);
  equal(split('\n<think>hm'), ['hm', '', true]);
  equal(split('<think>hm</thi'), ['hm', '', true]);
  equal(split('hm</think>yes'), ['hm', 'yes', false]);
  equal(split('hm', true), ['hm', '', true]);
  equal(split('hm</think>yes', true), ['hm', 'yes', false]);
  equal(split('yes <think>x</think>'), [null, 'yes <think>x</think>', false]);
  equal(split('<think></think>yes'), ['', 'yes', false]);
  equal(withoutThinking('<think>a</think>b'), 'b');
});

// ---- Tokens ----

test('tokens: pieces of a range', () => {
  const tokens = new Tokens();
  for (const [text, source, early] of [['Hel', 1], ['', 1], ['lo wor', 2], ['ld', 0, true]]) tokens.add({ text, source, early });
  tokens.addText('!?');
  const pieces = (from, to) => tokens.pieces(from, to).map(({ token, start, end }) => `${token?.kind ?? '-'}:${tokens.text.slice(start, end)}`);
  equal(pieces(0, 13), ['s1:Hel', 's2:lo wor', 'early:ld', '-:!?']);
  equal(pieces(1, 4), ['s1:el', 's2:l']);
  equal(pieces(11, 12), ['-:!']);
  equal(pieces(4, 4), []);
});
test('tokens: kept and read again', () => {
  const tokens = new Tokens();
  tokens.add({ text: 'a', source: 1, early: false }, { logprob: -0.5, top: [{ text: 'a', logprob: -0.5 }] });
  tokens.addText('--');
  tokens.add({ text: 'b', source: 7, early: false });
  const again = Tokens.load(tokens.text, JSON.parse(JSON.stringify(tokens.save())));
  equal(again.list, [{ start: 0, end: 1, kind: 's1', logprob: -0.5 }, { start: 3, end: 4, kind: 's4' }]);
  equal(Tokens.load('ab', [[0, 9, 1]]).list, []);
  equal(Tokens.load('ab', 'x').list, []);
  equal(Tokens.load('ab', [[0, 1, 99], null]).list, []);
});
test('tokens: scores of chats and of completions', () => {
  const chat = { logprobs: { content: [{ token: 'a', logprob: -1, top_logprobs: [{ token: 'b', logprob: -0.5 }] }] } };
  equal(scoresOf(chat), [{ logprob: -1, top: [{ text: 'b', logprob: -0.5 }] }]);
  const completion = { logprobs: { tokens: ['a'], token_logprobs: [-1], top_logprobs: [{ a: -1, b: -0.5 }] } };
  equal(scoresOf(completion), [{ logprob: -1, top: [{ text: 'b', logprob: -0.5 }, { text: 'a', logprob: -1 }] }]);
  equal(scoresOf({ logprobs: null }), []);
});
test('origins: one order, full computation last', () => {
  equal(ORIGINS.map(({ kind }) => kind), ['s1', 's2', 's3', 's4', 'early', 's0']);
  equal(originsFor([1, 2]).map(({ name }) => name), ['first draft', 'second draft', 'early draft', 'full computation']);
});

// ---- Code ----

test('syntax: comments, strings, numbers and words', () => {
  const shown = (line, language) => highlight(line, familyOf(language)).map(({ start, end, kind }) => `${kind}:${line.slice(start, end)}`);
  equal(shown('def add(a, b=10):  # sums "them"', 'python'), ['word:def', 'number:10', 'comment:# sums "them"']);
  equal(shown('return "a \\" // b" + \'c // d\'', 'js'), ['word:return', 'string:"a \\" // b"', "string:'c // d'"]);
  equal(shown('/* a */ int x = 0x1F; // b', 'C++'), ['comment:/* a */', 'word:int', 'number:0x1F', 'comment:// b']);
  equal(shown('SELECT a FROM b -- c', 'sql'), ['word:SELECT', 'word:FROM', 'comment:-- c']);
  equal(shown('if then else', 'klingon'), []);
  equal(shown('constructor __proto__ toString', 'js'), []);
  for (const line of ['"'.repeat(5000), '\\'.repeat(5000), '/*'.repeat(5000), 'a'.repeat(50000)]) highlight(line, 'c');
});

// ---- Numbers ----

test('dom: a wait is milliseconds, and seconds where it is long', () => {
  equal(duration(659.4), '659 ms');
  equal(duration(9_999), '9999 ms');
  equal(duration(28_128), '28.1 s');
});

// ---- Branches ----

test('branches: every draft is counted once', () => {
  const branches = new Branches();
  let step = 0;
  const event = (kind, branch, more = {}) => branches.add({ kind, branch, step, token: 0, position: 0, depth: 1, proposal: 0, text: 'x', ...more });
  const spawn = (branch, parent) => event('spawn', branch, { parent });
  spawn(0, -1);
  event('draft', 0, { proposal: 1 });
  event('draft', 0, { proposal: 2 });
  spawn(1, 0);
  event('draft', 1, { proposal: 1 });
  spawn(2, 0);
  event('draft', 2, { proposal: 1 });
  equal(describeDrafts(branches.counts), '4 drafted = 0 accepted + 0 thrown away + 4 open');
  step = 4;
  event('accept', 0, { proposal: 2 }); // the second of its two drafts
  event('prune', 1); // it stood on the first
  equal(describeDrafts(branches.counts), '4 drafted = 1 accepted + 2 thrown away + 1 open');
  event('fallback', 2);
  spawn(3, 2);
  event('draft', 3, { proposal: 1 });
  branches.finish();
  equal(describeDrafts(branches.counts), '5 drafted = 1 accepted + 3 thrown away + 1 past the end');
  equal(branches.counts.fallback, 1);
});

// ---- The context ----

test('context: what is asked for never exceeds the room', () => {
  equal(answerTokens({ wanted: 5000, room: 100, chat: true }), 100);
  equal(answerTokens({ wanted: 50, room: 100, chat: true }), 50);
  equal(answerTokens({ wanted: undefined, room: 100, chat: true }), 100);
  equal(answerTokens({ wanted: undefined, room: 10_000, chat: false }), 512);
  equal(answerTokens({ wanted: 500, room: 10_000, limit: 64, chat: true }), 64);
});

// ---- Conversations ----

// As localStorage is, with room for `most` characters.
function fakeStorage(most = Infinity) {
  const map = new Map();
  return {
    get length() { return map.size; },
    key: (i) => [...map.keys()][i],
    getItem: (name) => map.get(name) ?? null,
    removeItem: (name) => map.delete(name),
    setItem(name, text) {
      const others = [...map].reduce((sum, [other, value]) => sum + (other === name ? 0 : value.length), 0);
      if (others + text.length > most) throw new Error('QuotaExceededError');
      map.set(name, text);
    },
  };
}
const talk = (id, content, updated = 0) => ({ ...newConversation('m'), id, updated, messages: [{ role: 'user', content }, { role: 'assistant', content: 'yes' }] });

test('conversations: kept, listed, opened, removed', () => {
  const kept = new Conversations(fakeStorage());
  check(kept.save(talk('a', 'First\nline')) && kept.save(talk('b', 'Second')), 'saved');
  equal(kept.list().map(({ title }) => title).sort(), ['First', 'Second']);
  equal(kept.load('a').messages[0].content, 'First\nline');
  kept.remove('a');
  equal(kept.load('a'), null);
  kept.clear();
  equal(kept.list(), []);
});
test('conversations: the oldest go when there are too many or they are too long', () => {
  const kept = new Conversations(fakeStorage(), { conversations: 3, characters: 100_000 });
  for (const id of ['a', 'b', 'c', 'd']) {
    kept.save(talk(id, 'x'));
    const entry = JSON.parse(kept.storage.getItem(`loopspec.conversation.${id}`));
    kept.storage.setItem(`loopspec.conversation.${id}`, JSON.stringify({ ...entry, updated: id.charCodeAt(0) }));
  }
  equal(kept.list().map(({ id }) => id), ['d', 'c', 'b']);
  kept.save(talk('long', 'y'.repeat(99_700)));
  equal(kept.list().map(({ id }) => id), ['long']);
  equal(kept.save(talk('longer', 'z'.repeat(200_000))), false);
});
test('conversations: colours go before texts do', () => {
  const kept = new Conversations(fakeStorage(), { conversations: 3, characters: 10_000 });
  const tokens = Array.from({ length: 2000 }, (_, i) => [i, 1, 1]);
  const long = { ...talk('a', 'x') };
  long.messages[1].answers = [{ decode: 'loopspec', text: 'yes', tokens }];
  check(kept.save(long), 'saved');
  equal(kept.load('a').messages[1].answers[0].tokens, []);
  equal(long.messages[1].answers[0].tokens.length, 2000);
});
test('conversations: a full or forbidden storage is no error', () => {
  const full = new Conversations(fakeStorage(2000));
  for (let i = 0; i < 20; ++i) check(full.save(talk(`c${i}`, 'x'.repeat(100))), 'an old one makes room');
  equal(full.save(talk('long', 'x'.repeat(3000))), false);
  const none = new Conversations(null);
  equal([none.save(talk('a', 'x')), none.list(), none.load('a')], [false, [], null]);
  none.clear();
});
test('conversations: what is not of their form is not taken', () => {
  const kept = new Conversations(fakeStorage());
  for (const [i, text] of ['', 'null', '1', '{}', '{"id":1,"messages":[]}', '{"id":"a","messages":[null]}', '{"id":"a","messages":"x"}', '[]', '{"id'].entries()) {
    kept.storage.setItem(`loopspec.conversation.${i}`, text);
  }
  equal(kept.list(), []);
  kept.storage.setItem('loopspec.conversation.z', '{"id":"z","messages":[{"role":"system","content":"x"},{"role":"user","content":"hi","answers":[{"text":1}]}],"skipped":99}');
  equal(kept.list().map(({ id, skipped, messages }) => [id, skipped, messages]), [['z', 1, [{ role: 'user', content: 'hi', answers: [] }]]]);
});
test('conversations: a branch is a copy up to an answer', () => {
  const one = { ...talk('a', 'What?'), skipped: 0 };
  one.messages.push({ role: 'user', content: 'And?' }, { role: 'assistant', content: 'so' });
  const branch = branchOf(one, 1);
  equal(branch.messages.map(({ content }) => content), one.messages.slice(0, 2).map(({ content }) => content));
  check(branch.id !== one.id, 'an id of its own');
  branch.messages[0].content = 'changed';
  equal(one.messages[0].content, 'What?');
});
test('conversations: export', () => {
  const one = { ...talk('a', 'What?'), title: 'What? / Now', created: 0 };
  one.messages[1].content = '<think>hm</think>**yes**';
  equal(toMarkdown(one), '# What? / Now\n\nm, 1970-01-01 00:00 UTC\n\n## You\n\nWhat?\n\n## Model\n\n**yes**\n');
  equal(JSON.parse(toJson([one])).conversations, [one]);
  equal(fileName(one, 'md'), '1970-01-01-what-now.md');
  equal(fileName({ ...one, title: '../../..' }, 'json'), '1970-01-01-conversation.json');
});

// ---- Running them ----

export function run() {
  const failures = [];
  for (const { name, body } of tests) {
    try {
      body();
    } catch (error) {
      failures.push(`${name}: ${error.message}`);
    }
  }
  return { tests: tests.length, failures };
}
