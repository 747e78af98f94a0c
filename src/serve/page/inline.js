// Text inside a block of Markdown to a list of nodes:
//   text {start, end, value?}   a range of the source; `value` where the source is written otherwise (&amp;)
//   code, strong, em, del, link {href}, image {href}   with children
//   math {tex, display, start, end}, break
// Links lead to http, https and mailto alone; any other stays the text that it was.

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITY = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7})|#[xX]([\da-fA-F]{1,6}));/y;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: '\'', nbsp: '\u00a0' };
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/y;
const BREAK = /<br ?\/?>/iy;
const SPECIAL = /[\\`*_~[\]!<&$\nh]/g;
const LONGEST_LINK = 2000;
const LONGEST_MATH = 8000;
const DEEPEST = 30; // emphasis in emphasis, brackets in brackets

// The address if it is one to follow, else null. What a browser would drop from an address first is not let in at all.
export function safeHref(address) {
  if (address.length > LONGEST_LINK || (/[\s\\\p{Cc}]/u).test(address)) return null;
  return (/^(https?:\/\/[^/?#]|mailto:[^?]+@)/i).test(address) ? address : null;
}

// `ranges`: the lines of the block, {start, end}, without their indentation.
export function parseInline(source, ranges) {
  return new Inline(source, ranges).parse();
}

class Inline {
  constructor(source, ranges) {
    this.source = source;
    this.ranges = ranges;
    this.begins = []; // of each range in `text`
    const parts = [];
    let at = 0;
    for (const { start, end } of ranges) {
      this.begins.push(at);
      parts.push(source.slice(start, end));
      at += end - start + 1;
    }
    this.text = parts.join('\n');
    this.head = { next: null, prev: null }; // of the list of nodes
    this.tail = this.head;
    this.delimiters = []; // open ones
    this.brackets = [];
    this.closers = new Map(); // by mark: where the next one is
    this.ticks = null;
  }

  parse() {
    const { text } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > at) this.addText(at, next);
      if (!found) break;
      at = this.special(next, found[0]);
    }
    this.emphasis(0);
    return this.collect(this.head.next, null);
  }

  // ---- The list of nodes ----

  append(node) {
    node.prev = this.tail;
    node.next = null;
    this.tail.next = node;
    this.tail = node;
    return node;
  }

  addText(from, to, value) {
    if (to <= from) return;
    const start = this.place(from);
    const last = this.tail;
    if (value === undefined && last.type === 'text' && last.value === undefined && last.end === start) last.end += to - from;
    else this.append({ type: 'text', start, end: start + (to - from), ...(value === undefined ? {} : { value }) });
  }

  // Where position `at` of the joined text is in the source.
  place(at) {
    let low = 0;
    let high = this.begins.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.begins[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return this.ranges[low].start + at - this.begins[low];
  }

  // Nodes from `first` to before `end`, as an array; a delimiter that found no partner is text, of one piece with what is beside it.
  collect(first, end) {
    const nodes = [];
    for (let node = first; node !== end; node = node.next) {
      const { prev, next, ...plain } = node;
      const bare = node.type === 'delimiter' || node.type === 'bracket';
      if (bare && node.count === 0) continue;
      const made = bare ? { type: 'text', start: node.start, end: node.start + node.count } : plain;
      const last = nodes[nodes.length - 1];
      const joins = made.type === 'text' && made.value === undefined && last?.type === 'text' && last.value === undefined && last.end === made.start;
      if (joins) last.end = made.end;
      else nodes.push(made);
    }
    return nodes;
  }

  // ---- Characters with a meaning: each returns where to go on ----

  special(at, mark) {
    switch (mark) {
      case '\\': return this.backslash(at);
      case '`': return this.code(at);
      case '*':
      case '_':
      case '~': return this.delimiter(at, mark);
      case '$': return this.dollars(at);
      case '!': return this.bang(at);
      case '[': return this.open(at, 1);
      case ']': return this.close(at);
      case '<': return this.angle(at);
      case '&': return this.entity(at);
      case '\n': return this.newline(at);
      default: return this.address(at);
    }
  }

  plain(at, length = 1) {
    this.addText(at, at + length);
    return at + length;
  }

  backslash(at) {
    const next = this.text[at + 1];
    if (next === '(') return this.formula(at, '\\)', 2, false) ?? this.escape(at);
    if (next === '[') return this.formula(at, '\\]', 2, true) ?? this.escape(at);
    if (next === '\n') {
      this.append({ type: 'break' });
      return at + 2;
    }
    return next !== undefined && ESCAPABLE.test(next) ? this.escape(at) : this.plain(at);
  }

  escape(at) {
    this.addText(at + 1, at + 2);
    return at + 2;
  }

  // Runs of backticks by their length, so that the partner of one is found at once.
  code(at) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
        const list = this.ticks.get(run.length) ?? [];
        if (list.length === 0) this.ticks.set(run.length, list);
        list.push(index);
      }
      for (const list of this.ticks.values()) list.reverse();
    }
    let length = 1;
    while (this.text[at + length] === '`') length += 1;
    const list = this.ticks.get(length) ?? [];
    while (list.length > 0 && list[list.length - 1] <= at) list.pop();
    if (list.length === 0) return this.plain(at, length);
    let from = at + length;
    let to = list.pop();
    const next = to + length;
    const content = this.text.slice(from, to);
    if (content.trim() !== '' && (/^[ \n]/).test(content) && (/[ \n]$/).test(content)) {
      from += 1;
      to -= 1;
    }
    this.append({ type: 'code', children: this.lines(from, to) });
    return next;
  }

  // [from, to) as text nodes, a line each, with the space that a line's end counts as in code.
  lines(from, to) {
    const nodes = [];
    for (let begin = from; begin < to;) {
      let end = this.text.indexOf('\n', begin);
      if (end < 0 || end > to) end = to;
      if (end > begin) nodes.push({ type: 'text', start: this.place(begin), end: this.place(begin) + end - begin });
      if (end < to) nodes.push({ type: 'text', start: this.place(end - 1) + 1, end: this.place(end - 1) + 2, value: ' ' });
      begin = end + 1;
    }
    return nodes;
  }

  delimiter(at, mark) {
    let count = 1;
    while (this.text[at + count] === mark) count += 1;
    if (mark === '~' && count !== 2) return this.plain(at, count);
    const before = this.text[at - 1] ?? '\n';
    const after = this.text[at + count] ?? '\n';
    const space = { before: (/\s/).test(before), after: (/\s/).test(after) };
    const point = { before: PUNCTUATION.test(before), after: PUNCTUATION.test(after) };
    const left = !space.after && (!point.after || space.before || point.before);
    const right = !space.before && (!point.before || space.after || point.after);
    const node = this.append({
      type: 'delimiter', mark, count, run: count, inside: 0, start: this.place(at),
      opens: mark === '_' ? left && (!right || point.before) : left,
      closes: mark === '_' ? right && (!left || point.after) : right,
    });
    this.delimiters.push(node);
    return at + count;
  }

  dollars(at) {
    if (this.text[at + 1] === '$') return this.formula(at, '$$', 2, true) ?? this.plain(at, 2);
    // A price is no formula: nothing blank inside the dollars, no digit after them.
    const end = this.next('$', at + 1);
    const good = end > at + 1 && !(/\s/).test(this.text[at + 1]) && !(/\s/).test(this.text[end - 1]) && !(/\d/).test(this.text[end + 1] ?? '');
    return (good ? this.formula(at, '$', 1, false) : undefined) ?? this.plain(at);
  }

  formula(at, close, length, display) {
    const from = at + length;
    const to = this.next(close, from);
    if (to <= from || to - from > LONGEST_MATH) return undefined;
    const end = to + close.length;
    this.append({ type: 'math', tex: this.text.slice(from, to), display, start: this.place(at), end: this.place(end - 1) + 1 });
    return end;
  }

  // Where `mark` is next, not behind a backslash; -1 for nowhere. Remembered, so that asking often costs nothing.
  next(mark, from) {
    let found = this.closers.get(mark);
    if (found === undefined || (found >= 0 && found < from)) {
      found = this.text.indexOf(mark, from);
      while (found > 0 && mark[0] === '$' && this.text[found - 1] === '\\') found = this.text.indexOf(mark, found + 1);
      this.closers.set(mark, found);
    }
    return found;
  }

  bang(at) {
    return this.text[at + 1] === '[' ? this.open(at, 2) : this.plain(at);
  }

  open(at, count) {
    if (this.brackets.length >= DEEPEST) return this.plain(at, count);
    const node = this.append({ type: 'bracket', count, start: this.place(at) });
    this.brackets.push({ node, image: count === 2, active: true, delimiters: this.delimiters.length });
    return at + count;
  }

  close(at) {
    const bracket = this.brackets.pop();
    const target = bracket?.active ? this.target(at + 1) : null;
    if (!target) return this.plain(at);
    this.emphasis(bracket.delimiters);
    const children = this.collect(bracket.node.next, null);
    this.tail = bracket.node.prev;
    this.tail.next = null;
    this.append({ type: bracket.image ? 'image' : 'link', href: target.href, children });
    if (!bracket.image) for (const other of this.brackets) other.active = other.image; // no link inside a link
    return target.next;
  }

  // (address "title") at `at`: {href, next}, or null.
  target(at) {
    if (this.text[at] !== '(') return null;
    const part = this.text.slice(at + 1, at + 1 + LONGEST_LINK);
    const match = (/^\s*(?:<([^<>\n]*)>|([^\s()<]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/).exec(part);
    const href = match && safeHref(match[1] ?? match[2]);
    return href ? { href, next: at + 1 + match[0].length } : null;
  }

  angle(at) {
    AUTOLINK.lastIndex = at;
    const link = AUTOLINK.exec(this.text);
    if (link && safeHref(link[1])) {
      const start = this.place(at + 1);
      this.append({ type: 'link', href: link[1], children: [{ type: 'text', start, end: start + link[1].length }] });
      return at + link[0].length;
    }
    BREAK.lastIndex = at;
    const lineBreak = BREAK.exec(this.text);
    if (!lineBreak) return this.plain(at);
    this.append({ type: 'break' });
    return at + lineBreak[0].length;
  }

  entity(at) {
    ENTITY.lastIndex = at;
    const match = ENTITY.exec(this.text);
    if (!match) return this.plain(at);
    const code = match[2] ? parseInt(match[2], 10) : parseInt(match[3] ?? '0', 16);
    if (!match[1] && (code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))) return this.plain(at);
    this.addText(at, at + match[0].length, match[1] ? ENTITIES[match[1]] : String.fromCodePoint(code));
    return at + match[0].length;
  }

  // Models end lines where they mean it: a line's end is one here too.
  newline(at) {
    const last = this.tail;
    if (last.type === 'text' && last.value === undefined) {
      while (last.end > last.start && this.source[last.end - 1] === ' ') last.end -= 1;
    }
    if (last.type !== 'break') this.append({ type: 'break' });
    return at + 1;
  }

  address(at) {
    BARE.lastIndex = at;
    const match = (/\w/).test(this.text[at - 1] ?? '') ? null : BARE.exec(this.text);
    if (!match) return this.plain(at);
    let href = match[0].replace(/[*_~.,:;!?'\]]+$/, '');
    while (href.endsWith(')') && href.split(')').length > href.split('(').length) href = href.slice(0, -1).replace(/[*_~.,:;!?'\]]+$/, '');
    if (!safeHref(href)) return this.plain(at);
    const start = this.place(at);
    this.append({ type: 'link', href, children: [{ type: 'text', start, end: start + href.length }] });
    return at + href.length;
  }

  // ---- Emphasis: CommonMark's algorithm, over the delimiters from number `bottom` on ----

  emphasis(bottom) {
    const { delimiters } = this;
    const stack = []; // that can open
    const lowest = new Map(); // by kind of closer: below this height nothing opens for it
    for (let i = bottom; i < delimiters.length; ++i) {
      const closer = delimiters[i];
      while (closer.closes && closer.count > 0) {
        const kind = `${closer.mark}${closer.opens}${closer.run % 3}`;
        let at = stack.length - 1;
        const floor = Math.min(lowest.get(kind) ?? 0, stack.length);
        let inside = 0; // how deep it is between the two already
        for (; at >= floor; --at) {
          inside = Math.max(inside, stack[at].inside);
          if (inside >= DEEPEST || matches(stack[at], closer)) break;
        }
        if (at < floor || inside >= DEEPEST) {
          lowest.set(kind, stack.length);
          break;
        }
        stack.length = at + 1;
        for (const [name, height] of lowest) if (height > at) lowest.set(name, at);
        this.wrap(stack[at], closer);
        stack[at].inside = inside + 1;
        if (stack[at].count === 0) stack.pop();
        if (stack.length > 0) stack[stack.length - 1].inside = Math.max(stack[stack.length - 1].inside, inside + 1);
      }
      if (closer.opens && closer.count > 0) stack.push(closer);
    }
    delimiters.length = bottom;
  }

  wrap(opener, closer) {
    const two = opener.count >= 2 && closer.count >= 2;
    const length = two ? 2 : 1;
    const type = opener.mark === '~' ? 'del' : two ? 'strong' : 'em';
    const node = { type, children: this.collect(opener.next, closer), prev: opener, next: closer };
    opener.next = node;
    closer.prev = node;
    opener.count -= length;
    closer.count -= length;
    closer.start += length;
  }
}

function matches(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  const odd = (opener.closes || closer.opens) && closer.run % 3 !== 0 && (opener.run + closer.run) % 3 === 0;
  return !odd || opener.mark === '~';
}
