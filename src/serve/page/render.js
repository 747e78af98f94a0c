// Trees of markdown.js and math.js to elements. Only the tags written here are ever made, and text is always a text node.
import { copyButton, element } from './dom.js';
import { parseMarkdown } from './markdown.js';
import { parseMath } from './math.js';
import { familyOf, highlight } from './syntax.js';

const MATHML = 'http://www.w3.org/1998/Math/MathML';
const MATH_TAGS = new Set(['math', 'mrow', 'mi', 'mn', 'mo', 'mtext', 'mspace', 'mfrac', 'msqrt', 'mroot', 'msub', 'msup', 'msubsup', 'munder',
  'mover', 'munderover', 'mtable', 'mtr', 'mtd', 'mstyle', 'mphantom']);
const MATH_ATTRIBUTES = new Set(['display', 'mathvariant', 'stretchy', 'fence', 'accent', 'accentunder', 'linethickness', 'width', 'displaystyle',
  'lspace', 'rspace', 'class']);

export function mathElement({ tag, attributes, children, text }) {
  if (!MATH_TAGS.has(tag)) throw new Error(`math: unexpected tag ${tag}`);
  const made = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (!MATH_ATTRIBUTES.has(name)) throw new Error(`math: unexpected attribute ${name}`);
    made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  else made.append(...children.map(mathElement));
  return made;
}

// Draws ranges of `tokens.text`. `coloured`: tokens are classed by their origin.
class Painter {
  constructor(tokens, coloured) {
    this.tokens = tokens;
    this.coloured = coloured;
    this.depth = 0; // in lists and quotes, whose direction is that of their first words
  }

  leaf({ start, end, value }) {
    const { text } = this.tokens;
    return this.tokens.pieces(start, end).map(({ token, index, start: from, end: to }, i) => {
      const shown = value === undefined ? text.slice(from, to) : i === 0 ? value : '';
      if (!token) return document.createTextNode(shown);
      const made = element('span', this.coloured ? `token ${token.kind}` : 'token', shown);
      made.dataset.token = index;
      return made;
    });
  }

  inline(nodes) {
    return nodes.flatMap((node) => {
      switch (node.type) {
        case 'text': return this.leaf(node);
        case 'break': return [element('br')];
        case 'math': return [this.math(node, node.display)];
        case 'link': return [this.link(node, '')];
        case 'image': return [this.link(node, 'Image: ')]; // never loaded: it would tell another host who reads this
        case 'code':
        case 'strong':
        case 'em':
        case 'del': {
          const made = element(node.type);
          if (node.type === 'code') made.dir = 'ltr';
          made.append(...this.inline(node.children));
          return [made];
        }
        default: throw new Error(`markdown: unexpected ${node.type}`);
      }
    });
  }

  link({ href, children }, before) {
    const made = element('a');
    made.href = href;
    made.title = href;
    made.target = '_blank';
    made.rel = 'noopener noreferrer nofollow';
    made.append(before, ...this.inline(children));
    return made;
  }

  // A formula belongs to several tokens: it has the number of the first.
  math({ tex, start, end }, display) {
    const tree = parseMath(tex, display);
    if (!tree) {
      const made = element('code', 'tex');
      made.dir = 'ltr';
      made.append(...this.leaf({ start, end }));
      return made;
    }
    const box = element('span', display ? 'formula display' : 'formula');
    const index = this.tokens.pieces(start, end)[0]?.index ?? -1;
    if (index >= 0) box.dataset.token = index;
    box.append(mathElement(tree));
    return box;
  }

  blocks(nodes) {
    return nodes.map((node) => this.block(node));
  }

  block(node) {
    switch (node.type) {
      case 'paragraph': return this.filled('p', node.children);
      case 'heading': return this.filled(`h${Math.min(6, node.level + 2)}`, node.children); // the page has h1 and h2
      case 'rule': return element('hr');
      case 'quote': return this.directed(element('blockquote'), (made) => made.append(...this.blocks(node.children)));
      case 'code': return this.code(node);
      case 'math': {
        const made = element('div', 'math-block');
        made.append(this.math(node, true));
        return made;
      }
      case 'list': return this.list(node);
      case 'table': return this.table(node);
      default: throw new Error(`markdown: unexpected ${node.type}`);
    }
  }

  filled(tag, children) {
    return this.directed(element(tag), (made) => made.append(...this.inline(children)));
  }

  // An element that takes its direction from its text; what is inside it has the same.
  directed(made, fill) {
    if (this.depth === 0) made.dir = 'auto';
    this.depth += 1;
    fill(made);
    this.depth -= 1;
    return made;
  }

  code({ language, lines }) {
    const box = element('div', 'code');
    const head = element('div', 'code-head');
    const pre = element('pre');
    const body = element('code');
    box.dir = 'ltr';
    const family = familyOf(language);
    lines.forEach((line, i) => {
      if (i > 0) body.append('\n');
      body.append(...this.codeLine(line, family));
    });
    head.append(element('span', '', language || 'code'), copyButton(() => body.textContent));
    pre.tabIndex = 0; // can be scrolled by keyboard
    pre.append(body);
    box.append(head, pre);
    return box;
  }

  // A line's tokens, cut where a syntax colour begins or ends.
  codeLine({ start, end }, family) {
    const made = [];
    let at = start;
    for (const piece of highlight(this.tokens.text.slice(start, end), family)) {
      made.push(...this.leaf({ start: at, end: start + piece.start }));
      for (const part of this.leaf({ start: start + piece.start, end: start + piece.end })) {
        const coloured = part.nodeType === Node.TEXT_NODE ? element('span', '', part.textContent) : part;
        coloured.classList.add(`code-${piece.kind}`);
        made.push(coloured);
      }
      at = start + piece.end;
    }
    return [...made, ...this.leaf({ start: at, end })];
  }

  list({ ordered, first, tight, items }) {
    const made = element(ordered ? 'ol' : 'ul');
    if (ordered && first !== 1) made.start = first;
    return this.directed(made, () => made.append(...items.map((item) => this.item(item, tight))));
  }

  item({ task, children }, tight) {
    const made = element('li', task === null ? '' : 'task');
    if (task !== null) made.append(task ? '☑ ' : '☐ ');
    for (const child of children) {
      if (tight && child.type === 'paragraph') made.append(...this.inline(child.children));
      else made.append(this.block(child));
    }
    return made;
  }

  table({ align, head, rows }) {
    const box = element('div', 'table');
    const made = element('table');
    const row = (cells, tag) => {
      const line = element('tr');
      cells.forEach((cell, i) => {
        const filled = this.filled(tag, cell);
        if (align[i]) filled.className = `to-${align[i]}`;
        line.append(filled);
      });
      return line;
    };
    const top = element('thead');
    const body = element('tbody');
    top.append(row(head, 'th'));
    body.append(...rows.map((cells) => row(cells, 'td')));
    made.append(top, body);
    box.tabIndex = 0;
    box.append(made);
    return box;
  }
}

// Text that grows. Blocks that did not change keep their elements.
export class LiveText {
  constructor(element_, tokens, { coloured, markdown }) {
    this.element = element_;
    this.tokens = tokens;
    this.painter = new Painter(tokens, coloured);
    this.markdown = markdown;
    this.drawn = []; // {key, element}
  }

  setMarkdown(markdown) {
    this.markdown = markdown;
    this.drawn = [];
    this.element.replaceChildren();
  }

  // Shows [from, to).
  show(from, to) {
    this.element.classList.toggle('raw', !this.markdown);
    this.element.classList.toggle('md', this.markdown);
    // As it is written, a line is a block: the same bookkeeping.
    const blocks = this.markdown ? parseMarkdown(this.tokens.text, from, to) : rawLines(this.tokens.text, from, to);
    blocks.forEach((block, i) => {
      const key = `${block.type} ${block.start} ${block.end} ${block.open ?? ''}`;
      const old = this.drawn[i];
      if (old?.key === key) return;
      const made = block.type === 'raw' ? this.raw(block) : this.painter.block(block);
      if (old) old.element.replaceWith(made);
      else this.element.append(made);
      this.drawn[i] = { key, element: made };
    });
    for (const { element: gone } of this.drawn.splice(blocks.length)) gone.remove();
  }

  raw(block) {
    const made = element('div');
    made.dir = 'auto';
    made.append(...this.painter.leaf(block));
    return made;
  }
}

function rawLines(text, from, to) {
  const lines = [];
  for (let start = from; start < to;) {
    const end = text.indexOf('\n', start);
    const stop = end < 0 || end >= to ? to : end + 1;
    lines.push({ type: 'raw', start, end: stop });
    start = stop;
  }
  return lines;
}
