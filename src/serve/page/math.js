// A part of TeX's mathematics to a tree of MathML, which browsers draw by themselves: {tag, attributes, children | text}.
// A command that is not known is shown by its name. What cannot be read at all gives null, and the source is shown instead.
import { ACCENTS, DELIMITERS, FUNCTIONS, LETTERS, LIMITS, OPERATORS, SPACES, VARIANTS } from './math_symbols.js';

const LONGEST = 8000;
const DEEPEST = 40;

const node = (tag, children = [], attributes = {}) => ({ tag, attributes, children });
const leaf = (tag, text, attributes = {}) => ({ tag, attributes, text });
const row = (children) => (children.length === 1 ? children[0] : node('mrow', children));

class Unreadable extends Error {}

export function parseMath(tex, display = false) {
  if (tex.length > LONGEST) return null;
  try {
    const parser = new Parser(tex, display);
    const children = parser.list(() => parser.at >= parser.tokens.length);
    return node('math', [row(children)], display ? { display: 'block' } : {});
  } catch (error) {
    if (error instanceof Unreadable) return null;
    throw error;
  }
}

// Commands (\name or \ and a sign), numbers, and single characters; white space counts only inside \text.
function split(tex) {
  return tex.match(/\\(?:operatorname|tag|hspace)\*|\\[a-zA-Z]+|\\[\s\S]?|\d+(?:\.\d+)?|\s+|[\s\S]/gu) ?? [];
}

class Parser {
  constructor(tex, display) {
    this.tokens = split(tex.replace(/(?<!\\)%[^\n]*/g, ''));
    this.at = 0;
    this.display = display;
    this.depth = 0;
    this.variant = '';
  }

  skip() {
    while (this.at < this.tokens.length && this.tokens[this.at].trim() === '') this.at += 1;
  }

  peek() {
    this.skip();
    return this.tokens[this.at];
  }

  take() {
    const token = this.peek();
    if (token === undefined) throw new Unreadable();
    this.at += 1;
    return token;
  }

  // ---- Structure ----

  list(ends) {
    this.depth += 1;
    if (this.depth > DEEPEST) throw new Unreadable();
    const out = [];
    for (this.skip(); !ends(); this.skip()) {
      if (this.at >= this.tokens.length) throw new Unreadable();
      const made = this.scripted();
      if (made) out.push(made);
    }
    this.depth -= 1;
    return out;
  }

  group() {
    const children = this.list(() => this.tokens[this.at] === '}');
    this.at += 1;
    return node('mrow', children);
  }

  // What a command works on: a group, or the next sign.
  argument() {
    const token = this.take();
    if (token === '{') return this.group();
    if (token === '}' || token === '&' || token === '\\\\') throw new Unreadable();
    if ((/^\d\d/).test(token)) { // \frac12 is a half
      this.tokens.splice(this.at - 1, 1, token[0], token.slice(1));
      return leaf('mn', token[0]);
    }
    return this.atom(token) ?? node('mrow');
  }

  // The source between braces.
  raw() {
    if (this.take() !== '{') return this.tokens[this.at - 1];
    let text = '';
    for (let open = 1; ; ++this.at) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new Unreadable();
      if (token === '{') open += 1;
      if (token === '}') open -= 1;
      if (open === 0) break;
      text += token;
    }
    this.at += 1;
    return text;
  }

  optional() {
    if (this.peek() !== '[') return null;
    this.at += 1;
    const children = this.list(() => this.tokens[this.at] === ']');
    this.at += 1;
    return row(children);
  }

  // An atom with what stands above and below it.
  scripted() {
    const first = this.peek();
    const base = first === '^' || first === '_' || first === '\'' ? node('mrow') : this.atom(this.take());
    if (!base) return null;
    let { limits } = base;
    while ((/^\\(no)?limits$/).test(this.peek() ?? '')) limits = this.take() === '\\limits' ? 'always' : undefined;
    let below = null;
    let above = null;
    for (;;) {
      const token = this.peek();
      if (token === '_' && !below) {
        this.at += 1;
        below = this.argument();
      } else if (token === '^' && !above) {
        this.at += 1;
        above = this.argument();
      } else if (token === '\'') {
        let primes = '';
        while (this.peek() === '\'') {
          this.at += 1;
          primes += '′';
        }
        above = above ? node('mrow', [leaf('mo', primes), above]) : leaf('mo', primes);
      } else {
        break;
      }
    }
    if (!below && !above) return base;
    const under = limits === 'always' || (limits === 'display' && this.display);
    const [both, low, high] = under ? ['munderover', 'munder', 'mover'] : ['msubsup', 'msub', 'msup'];
    if (below && above) return node(both, [base, below, above]);
    return below ? node(low, [base, below]) : node(high, [base, above]);
  }

  // ---- Signs and commands ----

  atom(token) {
    if (token === '{') return this.group();
    if (token === '}' || token === '&' || token === '\\\\' || token === '\\') throw new Unreadable();
    if (token[0] === '\\') return this.command(token.slice(1));
    if ((/^\d/).test(token)) return leaf('mn', this.styled(token));
    if (token === '~') return leaf('mtext', '\u00a0');
    if (token === '-') return leaf('mo', '−');
    if (token === '*') return leaf('mo', '∗');
    if ((/^[\p{L}\p{M}]$/u).test(token)) return this.letter(token);
    if (('()[]|').includes(token)) return leaf('mo', token, { stretchy: 'false' });
    return leaf('mo', token);
  }

  letter(text) {
    if (this.variant === 'rm') return leaf('mi', text, { mathvariant: 'normal' });
    const styled = this.styled(text);
    return leaf('mi', styled, styled === text ? {} : { mathvariant: 'normal' });
  }

  // Bold, blackboard, script letters have code points of their own.
  styled(text) {
    const variant = VARIANTS[this.variant];
    if (!variant) return text;
    return [...text].map((letter) => {
      if (variant.others?.[letter]) return variant.others[letter];
      const code = letter.codePointAt(0);
      if (code >= 65 && code <= 90 && variant.upper) return String.fromCodePoint(variant.upper + code - 65);
      if (code >= 97 && code <= 122 && variant.lower) return String.fromCodePoint(variant.lower + code - 97);
      if (code >= 48 && code <= 57 && variant.digit) return String.fromCodePoint(variant.digit + code - 48);
      return letter;
    }).join('');
  }

  command(given) {
    const name = given.replace(/\*$/, '');
    if (Object.hasOwn(LETTERS, name)) return leaf('mi', LETTERS[name], (/^[A-Z]/).test(name) ? { mathvariant: 'normal' } : {});
    if (Object.hasOwn(LIMITS, name)) {
      const sign = LIMITS[name];
      return { ...leaf((/^[a-z]/).test(sign) ? 'mi' : 'mo', sign), limits: name.includes('int') ? undefined : 'display' };
    }
    if (Object.hasOwn(OPERATORS, name)) return leaf('mo', OPERATORS[name]);
    if (Object.hasOwn(FUNCTIONS, name)) return leaf('mi', FUNCTIONS[name]);
    if (Object.hasOwn(SPACES, name)) return node('mspace', [], { width: SPACES[name] });
    if (Object.hasOwn(ACCENTS, name)) return this.accent(ACCENTS[name]);
    if (Object.hasOwn(DELIMITERS, name)) return leaf('mo', DELIMITERS[name], { stretchy: 'false' });
    return this.structure(name);
  }

  accent({ sign, under, stretchy }) {
    const mark = leaf('mo', sign, { stretchy: String(Boolean(stretchy)) });
    return { ...node(under ? 'munder' : 'mover', [this.argument(), mark], under ? { accentunder: 'true' } : { accent: 'true' }),
      limits: sign === '⏟' || sign === '⏞' ? 'always' : undefined };
  }

  structure(name) {
    switch (name) {
      case 'frac':
      case 'dfrac':
      case 'tfrac':
      case 'cfrac': return this.fraction(name === 'dfrac' || name === 'cfrac');
      case 'binom':
      case 'dbinom':
      case 'tbinom':
        return node('mrow', [leaf('mo', '('), node('mfrac', [this.argument(), this.argument()], { linethickness: '0' }), leaf('mo', ')')]);
      case 'sqrt': {
        const degree = this.optional();
        return degree ? node('mroot', [this.argument(), degree]) : node('msqrt', [this.argument()]);
      }
      case 'left': return this.fenced();
      case 'begin': return this.environment();
      case 'text':
      case 'textrm':
      case 'textit':
      case 'mbox': return leaf('mtext', this.raw().replace(/^\s|\s$/g, '\u00a0').replace(/\\([%$#&_{} ])/g, '$1'));
      case 'textbf': return leaf('mtext', this.raw(), { class: 'bold' });
      case 'texttt': return leaf('mtext', this.raw(), { class: 'mono' });
      case 'operatorname': return leaf('mi', this.raw());
      case 'mathrm': return this.inVariant('rm');
      case 'mathbf':
      case 'boldsymbol':
      case 'bm':
      case 'mathbb':
      case 'mathcal':
      case 'mathscr':
      case 'mathfrak':
      case 'mathsf':
      case 'mathtt': return this.inVariant({ boldsymbol: 'bf', bm: 'bf', mathscr: 'cal' }[name] ?? name.slice(4));
      case 'mathit':
      case 'displaystyle':
      case 'textstyle':
      case 'scriptstyle':
      case 'nonumber':
      case 'notag': return null;
      case 'overset':
      case 'stackrel': {
        const above = this.argument();
        return node('mover', [this.argument(), above]);
      }
      case 'underset': {
        const below = this.argument();
        return node('munder', [this.argument(), below]);
      }
      case 'boxed':
      case 'fbox': return node('mrow', [this.argument()], { class: 'boxed' });
      case 'phantom': return node('mphantom', [this.argument()]);
      case 'pmod': return node('mrow', [leaf('mo', '('), leaf('mi', 'mod'), node('mspace', [], { width: '0.3em' }), this.argument(), leaf('mo', ')')]);
      case 'bmod': return leaf('mo', 'mod', { lspace: '0.2em', rspace: '0.2em' });
      case 'not': return leaf('mo', `${this.text(this.argument())}\u0338`);
      case 'tag': return node('mrow', [node('mspace', [], { width: '2em' }), leaf('mtext', `(${this.raw()})`)]);
      case 'label': this.raw(); return null;
      case 'color':
      case 'textcolor': this.raw(); return name === 'color' ? null : this.argument();
      case 'hspace': this.raw(); return null;
      case 'big': case 'Big': case 'bigg': case 'Bigg':
      case 'bigl': case 'Bigl': case 'biggl': case 'Biggl':
      case 'bigr': case 'Bigr': case 'biggr': case 'Biggr':
      case 'middle': return leaf('mo', this.delimiter(), { stretchy: 'true' });
      case 'right':
      case 'end': throw new Unreadable();
      case '%': case '$': case '#': case '&': case '_': return leaf('mi', name, { mathvariant: 'normal' });
      default: return leaf('mtext', `\\${name}`, { class: 'unknown' });
    }
  }

  text({ text, children }) {
    return text ?? children.map((child) => this.text(child)).join('');
  }

  fraction(large) {
    const made = node('mfrac', [this.argument(), this.argument()]);
    return large && !this.display ? node('mstyle', [made], { displaystyle: 'true' }) : made;
  }

  inVariant(variant) {
    const before = this.variant;
    this.variant = variant;
    try {
      return this.argument();
    } finally {
      this.variant = before;
    }
  }

  delimiter() {
    const token = this.take();
    if (token === '.') return '';
    if (token[0] !== '\\') return token;
    const sign = DELIMITERS[token.slice(1)] ?? OPERATORS[token.slice(1)];
    if (sign === undefined) throw new Unreadable();
    return sign;
  }

  fenced() {
    const left = this.delimiter();
    const children = this.list(() => this.tokens[this.at] === '\\right');
    this.at += 1;
    const right = this.delimiter();
    const fence = (sign) => leaf('mo', sign, { fence: 'true', stretchy: 'true' });
    return node('mrow', [...(left ? [fence(left)] : []), ...children, ...(right ? [fence(right)] : [])]);
  }

  environment() {
    const name = this.raw().replace(/\*$/, '');
    const fences = { pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{' }[name] ?? '';
    const known = ['matrix', 'smallmatrix', 'array', 'aligned', 'align', 'alignat', 'split', 'gathered', 'gather', 'equation'];
    if (!fences && !known.includes(name)) throw new Unreadable();
    if (name === 'array' || name === 'alignat') this.raw(); // the columns
    const rows = this.rows();
    if (name === 'equation') return row(rows.flat());
    const left = name === 'cases' || name === 'array' || name.startsWith('align') || name === 'split';
    const table = node('mtable', rows.map((cells) => node('mtr', cells.map((cell, i) => (
      node('mtd', [cell], left ? { class: name === 'cases' || i % 2 === 1 || name === 'array' ? 'left' : 'right' } : {}))))),
    name.startsWith('align') || name === 'split' || name.startsWith('gather') ? { displaystyle: 'true', class: 'aligned' } : {});
    if (!fences) return table;
    const fence = (sign) => leaf('mo', sign, { fence: 'true', stretchy: 'true' });
    return node('mrow', [fence(fences[0]), table, ...(fences[1] ? [fence(fences[1])] : [])]);
  }

  // Up to and with \end{...}.
  rows() {
    const rows = [[]];
    for (;;) {
      const children = this.list(() => ['&', '\\\\', '\\end', '\\hline'].includes(this.tokens[this.at]));
      rows[rows.length - 1].push(node('mrow', children));
      const token = this.take();
      if (token === '\\hline') rows[rows.length - 1].pop();
      if (token === '\\\\') {
        if (this.peek() === '[') this.optional();
        rows.push([]);
      }
      if (token === '\\end') break;
    }
    this.raw();
    const last = rows[rows.length - 1];
    if (rows.length > 1 && last.every((cell) => cell.children.length === 0)) rows.pop();
    return rows;
  }
}
