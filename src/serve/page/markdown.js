// Markdown to a tree: CommonMark's common part, tables, task lists, TeX between dollars. A tree holds ranges of the source instead
// of copies, so that whoever draws it knows which tokens a letter came from. It never holds HTML: a tag is text like any other.
// Linear in the length of the text, whatever the text is.
//
// Blocks, each with {start, end}: paragraph, heading {level}, code {language, lines, open}, math {tex}, quote {children},
// list {ordered, first, tight, items: [{task, children}]}, table {align, head, rows}, rule. Inline nodes: see inline.js.
import { parseInline } from './inline.js';

const DEEPEST = 12; // quotes and lists inside each other; what is deeper is text
const FENCE = /^(`{3,}|~{3,})(.*)$/;
const ANSWER = /^####\s+[-$]?[\d.,]+\s*$/; // how word problems mark their results: stays as it is written
const HEADING = /^(#{1,6})(?:[ \t]|$)/;
const RULE = /^([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;
const UNDERLINE = /^(={2,}|-{2,})[ \t]*$/; // one alone is a list about to begin
const DELIMITER_CELL = /^:?-+:?$/;

export function parseMarkdown(text, from = 0, to = text.length) {
  const lines = [];
  for (let start = from; start <= to;) {
    let end = text.indexOf('\n', start);
    if (end < 0 || end > to) end = to;
    lines.push({ start, end: end > start && text[end - 1] === '\r' ? end - 1 : end });
    start = end + 1;
  }
  return new Blocks(text, lines, 0).parse();
}

class Blocks {
  constructor(text, lines, depth) {
    this.text = text;
    this.lines = lines;
    this.depth = depth;
    this.noMath = { $$: -1, '\\[': -1 }; // up to this line nothing closes them
    this.out = [];
  }

  parse() {
    let i = 0;
    while (i < this.lines.length) {
      if (this.blank(i)) i += 1;
      else i = this.special(i) ?? this.indentedCode(i) ?? this.paragraph(i);
    }
    return this.out;
  }

  // ---- Lines ----

  blank(i) {
    return this.indent(i).at === this.lines[i].end;
  }

  // {columns of white space, where it ends}.
  indent(i) {
    const line = this.lines[i];
    if (line.at !== undefined) return line;
    let at = line.start;
    let columns = 0;
    for (; at < line.end; ++at) {
      if (this.text[at] === ' ') columns += 1;
      else if (this.text[at] === '\t') columns += 4 - (columns % 4);
      else break;
    }
    line.at = at;
    line.columns = columns;
    return line;
  }

  // The line without its white space in front; empty when that makes it code.
  content(i) {
    const { columns, at, end } = this.indent(i);
    return columns > 3 ? '' : this.text.slice(at, end);
  }

  // The line less `columns` of white space.
  unindented(i, columns) {
    const line = this.lines[i];
    let at = line.start;
    for (let gone = 0; at < line.end && gone < columns; ++at) {
      if (this.text[at] === ' ') gone += 1;
      else if (this.text[at] === '\t') gone += 4 - (gone % 4);
      else break;
    }
    return { start: at, end: line.end };
  }

  push(block, first, next) {
    this.out.push({ ...block, start: this.lines[first].start, end: this.lines[next - 1].end });
    return next;
  }

  inner(lines) {
    return new Blocks(this.text, lines, this.depth + 1).parse();
  }

  // ---- Blocks: each takes the line that it may begin at, and returns the line after it, or undefined ----

  special(i) {
    const content = this.content(i);
    if (content === '') return undefined;
    return this.fence(i, content) ?? this.heading(i, content) ?? this.rule(i, content) ?? this.quote(i, content)
      ?? this.list(i, content) ?? this.math(i, content) ?? this.table(i);
  }

  // Whether a paragraph ends before line `i`.
  interrupts(i) {
    const content = this.content(i);
    if (content === '') return false;
    const item = ITEM.exec(content);
    return FENCE.test(content) || HEADING.test(content) || RULE.test(content) || content[0] === '>'
      || (item !== null && content.length > item[0].length && (/^([-*+]|1[.)])$/).test(item[0]))
      || this.mathEnd(i, content) !== undefined || this.tableColumns(i) > 0;
  }

  fence(i, content) {
    const match = FENCE.exec(content);
    if (!match || (match[1][0] === '`' && match[2].includes('`'))) return undefined;
    const [, marks, info] = match;
    const { columns } = this.indent(i);
    const lines = [];
    let next = i + 1;
    let open = true;
    for (; next < this.lines.length; ++next) {
      const closing = this.content(next).trimEnd();
      if (closing.length >= marks.length && closing === marks[0].repeat(closing.length)) {
        open = false;
        next += 1;
        break;
      }
      lines.push(this.unindented(next, columns));
    }
    const language = (/^[\w+#.-]{1,30}/).exec(info.trim())?.[0] ?? '';
    return this.push({ type: 'code', language, lines, open }, i, next);
  }

  heading(i, content) {
    const match = HEADING.exec(content);
    if (!match || ANSWER.test(content)) return undefined;
    const { at, end } = this.lines[i];
    const rest = this.trim(at + match[1].length, end);
    let close = rest.end;
    while (close > rest.start && this.text[close - 1] === '#') close -= 1;
    if (close === rest.start || (' \t').includes(this.text[close - 1])) rest.end = close;
    const children = parseInline(this.text, [this.trim(rest.start, rest.end)]);
    return this.push({ type: 'heading', level: match[1].length, children }, i, i + 1);
  }

  rule(i, content) {
    return RULE.test(content) ? this.push({ type: 'rule' }, i, i + 1) : undefined;
  }

  quote(i, content) {
    if (content[0] !== '>' || this.depth >= DEEPEST) return undefined;
    const lines = [];
    let next = i;
    for (; next < this.lines.length && this.content(next)[0] === '>'; ++next) {
      const { at, end } = this.lines[next];
      lines.push({ start: this.text[at + 1] === ' ' && at + 1 < end ? at + 2 : at + 1, end });
    }
    return this.push({ type: 'quote', children: this.inner(lines) }, i, next);
  }

  list(i, content) {
    const match = ITEM.exec(content);
    if (!match || this.depth >= DEEPEST) return undefined;
    const marker = match[1];
    const ordered = marker.length > 1;
    const items = [];
    let tight = true;
    let next = i;
    while (next < this.lines.length) {
      const here = ITEM.exec(this.content(next));
      if (!here || here[1].slice(-1) !== marker.slice(-1) || RULE.test(this.content(next))) break;
      const item = this.item(next, here[1]);
      items.push(item);
      next = item.next;
      const gap = next;
      while (next < this.lines.length && this.blank(next)) next += 1;
      const more = next < this.lines.length && ITEM.exec(this.content(next))?.[1].slice(-1) === marker.slice(-1);
      if (gap < next && more) tight = false;
      if (!more) {
        next = gap;
        break;
      }
    }
    if (items.some(({ loose }) => loose)) tight = false;
    return this.push({
      type: 'list', ordered, first: ordered ? parseInt(marker, 10) : 1, tight,
      items: items.map(({ task, children }) => ({ task, children })),
    }, i, next);
  }

  item(i, marker) {
    const { at, end, columns } = this.indent(i);
    let body = at + marker.length;
    while (body < end && body < at + marker.length + 4 && (' \t').includes(this.text[body])) body += 1;
    const column = columns + (body - at);
    const lines = [{ start: Math.min(body, end), end }];
    let next = i + 1;
    let blanks = 0;
    let loose = false;
    for (; next < this.lines.length; ++next) {
      if (this.blank(next)) {
        blanks += 1;
        continue;
      }
      const own = this.indent(next).columns >= Math.min(column, columns + 2);
      // A line that only goes on belongs to the paragraph before it.
      if (!own && (blanks > 0 || this.interrupts(next) || ITEM.test(this.content(next)))) break;
      loose = loose || blanks > 0;
      for (; blanks > 0; --blanks) lines.push({ start: this.lines[next].start, end: this.lines[next].start });
      lines.push(this.unindented(next, column));
    }
    const mark = (/^\[([ xX])\](?=[ \t])/).exec(this.text.slice(lines[0].start, lines[0].start + 5));
    if (mark) lines[0].start += 4;
    const children = this.inner(lines);
    return { next: next - blanks, task: mark ? mark[1] !== ' ' : null, children, loose: loose && children.length > 1 };
  }

  math(i, content) {
    const end = this.mathEnd(i, content);
    if (end === undefined) return undefined;
    const close = content.startsWith('$$') ? '$$' : '\\]';
    const { at } = this.lines[i];
    const last = this.text.slice(this.lines[end].start, this.lines[end].end).trimEnd();
    const from = at + 2;
    const point = last.endsWith(close) ? '' : last.slice(-1);
    const to = this.lines[end].start + last.length - point.length - 2;
    return this.push({ type: 'math', tex: this.text.slice(from, to) + point }, i, end + 1);
  }

  // The line that ends the formula which begins with line `i`. Blank lines end the search.
  mathEnd(i, content) {
    const open = ['$$', '\\['].find((mark) => content.startsWith(mark));
    if (!open || i <= this.noMath[open]) return undefined;
    const close = open === '$$' ? '$$' : '\\]';
    for (let next = i; next < this.lines.length && !this.blank(next); ++next) {
      const { at, end } = this.indent(next);
      let last = end;
      while (last > at && (' \t').includes(this.text[last - 1])) last -= 1;
      // A full stop or comma after the formula is taken with it.
      if (last > at + 2 && ('.,').includes(this.text[last - 1])) last -= 1;
      const begin = next === i ? at + 2 : at;
      if (last - 2 >= begin && this.text.startsWith(close, last - 2)) return next;
      if (next + 1 === this.lines.length || this.blank(next + 1)) this.noMath[open] = next;
    }
    return undefined;
  }

  // ---- Tables ----

  cells(i) {
    const { at, end } = this.indent(i);
    const ranges = [];
    let from = this.text[at] === '|' ? at + 1 : at;
    for (let p = from; p < end; ++p) {
      if (this.text[p] === '\\') p += 1;
      else if (this.text[p] === '|') {
        ranges.push(this.trim(from, p));
        from = p + 1;
      }
    }
    const rest = this.trim(from, end);
    if (rest.start < rest.end) ranges.push(rest);
    return ranges;
  }

  // How many columns the table has that begins at line `i`: 0 when none does.
  tableColumns(i) {
    if (i + 1 >= this.lines.length || this.indent(i + 1).columns > 3) return 0;
    const below = this.text.slice(this.lines[i + 1].start, this.lines[i + 1].end);
    if (!below.includes('-') || !below.includes('|') || !(/^[-:| \t]+$/).test(below)) return 0;
    const head = this.text.slice(this.lines[i].start, this.lines[i].end);
    if (!head.includes('|')) return 0;
    const cells = this.cells(i + 1);
    const good = cells.every(({ start, end }) => DELIMITER_CELL.test(this.text.slice(start, end)));
    return good && cells.length === this.cells(i).length ? cells.length : 0;
  }

  table(i) {
    const columns = this.tableColumns(i);
    if (columns === 0) return undefined;
    const align = this.cells(i + 1).map(({ start, end }) => {
      const left = this.text[start] === ':';
      const right = this.text[end - 1] === ':';
      return left && right ? 'center' : right ? 'right' : left ? 'left' : '';
    });
    const row = (line) => {
      const cells = this.cells(line).slice(0, columns).map((range) => parseInline(this.text, [range]));
      while (cells.length < columns) cells.push([]);
      return cells;
    };
    const rows = [];
    let next = i + 2;
    while (next < this.lines.length && !this.blank(next) && this.text.slice(this.lines[next].start, this.lines[next].end).includes('|')) {
      rows.push(row(next));
      next += 1;
    }
    return this.push({ type: 'table', align, head: row(i), rows }, i, next);
  }

  // ---- Text ----

  indentedCode(i) {
    if (this.indent(i).columns < 4) return undefined;
    const lines = [];
    let next = i;
    let last = i;
    for (; next < this.lines.length && (this.blank(next) || this.indent(next).columns >= 4); ++next) {
      lines.push(this.unindented(next, 4));
      if (!this.blank(next)) last = next;
    }
    return this.push({ type: 'code', language: '', lines: lines.slice(0, last - i + 1), open: false }, i, last + 1);
  }

  paragraph(i) {
    let next = i + 1;
    let level = 0;
    for (; next < this.lines.length && !this.blank(next); ++next) {
      const underline = UNDERLINE.exec(this.content(next));
      if (underline) {
        level = underline[1][0] === '=' ? 1 : 2;
        break;
      }
      if (this.interrupts(next)) break;
    }
    const ranges = [];
    for (let line = i; line < next; ++line) ranges.push({ start: this.indent(line).at, end: this.lines[line].end });
    const last = ranges[ranges.length - 1];
    ranges[ranges.length - 1] = this.trim(last.start, last.end);
    const children = parseInline(this.text, ranges);
    if (level > 0) return this.push({ type: 'heading', level, children }, i, next + 1);
    return this.push({ type: 'paragraph', children }, i, next);
  }

  trim(from, to) {
    let start = from;
    let end = to;
    while (start < end && (' \t').includes(this.text[start])) start += 1;
    while (end > start && (' \t').includes(this.text[end - 1])) end -= 1;
    return { start, end };
  }
}
