// Draws branches over time: a bar for each, darker as it gets deeper; what was pruned is struck out.
import { describeDrafts } from './branches.js';
import { element } from './dom.js';
import { kindOf, originOf } from './origins.js';

const ROW = 24;
const BAR = 18;
const TOP = 8;
const AXIS = 22;
const NOW = 96; // width of the picture of depths at the right
const MOST_LANES = 14;

function shown(text) {
  return text.replace(/\n/g, '↵').replace(/\t/g, '⇥');
}

export class Pipeline {
  constructor(branches, recurrence) {
    this.branches = branches;
    this.recurrence = recurrence;
    this.cell = Math.max(5, Math.min(24, 104 / recurrence)); // width of a recurrence
    this.follow = true;
    this.start = 0; // the first recurrence in sight
    this.pending = false;

    this.element = element('figure', 'pipeline');
    this.canvas = element('canvas');
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', 'The pipeline');
    this.slider = element('input', 'timeline');
    this.slider.type = 'range';
    this.slider.min = 0;
    this.slider.max = 0;
    this.slider.hidden = true;
    this.slider.setAttribute('aria-label', 'Loops in sight');
    this.caption = element('figcaption');
    this.counts = element('span', 'counts');
    this.detail = element('span', 'detail');
    this.caption.append(this.counts, this.detail);
    this.element.append(this.canvas, this.slider, this.caption);

    this.slider.addEventListener('input', () => {
      this.start = Number(this.slider.value);
      this.follow = this.start >= Number(this.slider.max);
      this.request();
    });
    for (const type of ['pointermove', 'pointerdown']) {
      this.canvas.addEventListener(type, (event) => this.point(event));
    }
    this.canvas.addEventListener('pointerleave', () => {
      this.detail.textContent = '';
    });
    new ResizeObserver(() => this.request()).observe(this.element);
  }

  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  finish() {
    this.branches.finish();
    this.canvas.setAttribute('aria-label',
      `The pipeline: ${this.branches.step} loops, ${describeDrafts(this.branches.counts)}, ${this.branches.counts.fallback} tokens without a draft.`);
    this.request();
  }

  // ---- What is where ----

  get columns() {
    return Math.max(1, Math.floor((this.width - NOW - 12) / this.cell));
  }
  x(step) {
    return (step - this.start) * this.cell + 4;
  }
  y(branch) {
    return TOP + Math.min(branch.lane, MOST_LANES - 1) * ROW;
  }

  visible() {
    const { branches } = this;
    const last = this.start + this.columns;
    const list = [];
    for (let i = branches.firstAfter(this.start); i < branches.all.length; ++i) {
      if (branches.all[i].born > last) break;
      list.push(branches.all[i]);
    }
    return list;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const found = this.visible().find((branch) => {
      const end = branch.end ?? this.branches.step;
      return x >= this.x(branch.born) && x <= this.x(end) && y >= this.y(branch) && y <= this.y(branch) + BAR;
    });
    this.detail.textContent = found ? this.describe(found) : '';
  }

  describe(branch) {
    const origin = branch.prompt ? 'the prompt’s last token' : originOf(kindOf(branch)).name;
    const end = { live: 'running', verified: 'checked', pruned: 'a wrong draft, thrown away', unused: 'not needed any more' }[branch.state];
    return `“${shown(branch.text)}” at position ${branch.position}: ${origin}, loop ${branch.depth} of ${this.recurrence}, ${end}`;
  }

  // ---- Drawing ----

  draw() {
    this.width = Math.floor(this.element.clientWidth);
    if (this.width < 50) return;
    const lanes = Math.max(this.branches.plain ? 2 : 5, Math.min(MOST_LANES, this.branches.lanes));
    this.height = TOP + lanes * ROW + AXIS;
    const scale = window.devicePixelRatio || 1;
    const pixels = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
      this.canvas.style.height = `${this.height}px`;
    }
    const context = this.canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const style = getComputedStyle(this.element);
    this.colours = (name) => style.getPropertyValue(`--${name}`).trim();
    this.font = style.fontFamily;

    this.scroll();
    context.save();
    context.beginPath();
    context.rect(0, 0, this.width - NOW, this.height);
    context.clip();
    this.drawAxis(context);
    const list = this.visible();
    for (const branch of list) this.drawLink(context, branch);
    for (const branch of list) this.drawBranch(context, branch);
    context.restore();
    this.drawDepths(context);
    this.describeCounts();
  }

  scroll() {
    const most = Math.max(0, this.branches.step - this.columns);
    if (this.follow) this.start = most;
    this.start = Math.min(this.start, most);
    this.slider.hidden = most === 0;
    this.slider.max = most;
    this.slider.value = this.start;
  }

  describeCounts() {
    const { fallback, rows } = this.branches.counts;
    const perStep = this.branches.step > 0 ? rows / this.branches.step : 0;
    if (this.branches.plain) {
      this.counts.textContent = `${fallback} tokens, each in full · ${perStep.toFixed(1)} tokens at a time`;
      return;
    }
    this.counts.textContent =
      `${describeDrafts(this.branches.counts)} · ${fallback} tokens without a draft · ${perStep.toFixed(1)} tokens at a time`;
  }

  drawAxis(context) {
    const bottom = this.height - AXIS;
    context.font = `11px ${this.font}`;
    context.textBaseline = 'middle';
    context.textAlign = 'left';
    const every = this.recurrence * Math.max(1, Math.round(70 / (this.cell * this.recurrence)));
    const first = Math.ceil(this.start / every) * every;
    for (let step = first; step <= this.start + this.columns; step += every) {
      context.fillStyle = this.colours('line');
      context.fillRect(Math.round(this.x(step)), 0, 1, bottom);
      context.fillStyle = this.colours('soft');
      context.fillText(step === 0 ? '0 loops' : String(step), this.x(step) + 3, bottom + AXIS / 2);
    }
  }

  colourOf(branch) {
    if (branch.prompt) return this.colours('soft');
    if (this.branches.plain) return this.colours('accent');
    return this.colours(kindOf(branch));
  }

  // From the parent to its child, at the child's birth.
  drawLink(context, branch) {
    if (branch.parentLane < 0) return;
    const x = this.x(branch.born);
    const from = TOP + Math.min(branch.parentLane, MOST_LANES - 1) * ROW + BAR / 2;
    const to = this.y(branch) + BAR / 2;
    context.strokeStyle = this.colourOf(branch);
    context.globalAlpha = branch.state === 'pruned' || branch.state === 'unused' ? 0.25 : 0.6;
    context.lineWidth = 1.25;
    context.beginPath();
    context.moveTo(x - 4, from);
    context.quadraticCurveTo(x - 1, (from + to) / 2, x + 1, to);
    context.stroke();
    context.globalAlpha = 1;
  }

  drawBranch(context, branch) {
    const y = this.y(branch);
    const left = this.x(branch.born);
    const right = this.x(branch.end ?? this.branches.step);
    const lost = branch.state === 'pruned' || branch.state === 'unused';
    const colour = this.colourOf(branch);
    context.fillStyle = colour;
    // Where it waits, a line; where it advances, a box that is darker the deeper it is.
    let waited = branch.born;
    for (const advance of branch.advances) {
      this.drawWait(context, waited, advance.from, y, lost);
      waited = advance.to;
      const count = advance.to - advance.from;
      for (let i = 0; i < count; ++i) {
        const depth = advance.depth - count + 1 + i;
        const x = this.x(advance.from + i);
        if (x > this.width || x + this.cell < 0) continue;
        context.globalAlpha = lost ? 0.14 : 0.22 + 0.5 * (depth / this.recurrence);
        context.fillRect(x + (this.cell > 8 ? 0.5 : 0), y, this.cell - (this.cell > 8 ? 1 : 0), BAR);
      }
    }
    this.drawWait(context, waited, branch.end ?? this.branches.step, y, lost);
    context.globalAlpha = 1;
    if (branch.committed && !branch.prompt) {
      context.strokeStyle = colour;
      context.lineWidth = 1.5;
      context.strokeRect(left + 1, y + 0.75, Math.max(2, right - left - 2), BAR - 1.5);
    }
    this.drawLabel(context, branch, left, right, y, lost);
  }

  drawWait(context, from, to, y, lost) {
    if (to <= from) return;
    context.globalAlpha = lost ? 0.25 : 0.6;
    context.fillRect(this.x(from), y + BAR / 2 - 0.75, (to - from) * this.cell, 1.5);
  }

  drawLabel(context, branch, left, right, y, lost) {
    const begin = Math.max(left, 4);
    const room = right - begin - 8;
    if (room < 12) return;
    context.save();
    context.beginPath();
    context.rect(begin, y, room + 6, BAR);
    context.clip();
    context.font = `${lost ? '' : '600 '}11.5px ${this.font}`;
    context.textBaseline = 'middle';
    context.fillStyle = this.colours(lost ? 'soft' : 'ink');
    const label = shown(branch.text).trim() || '␣';
    context.fillText(label, begin + 5, y + BAR / 2 + 0.5);
    if (branch.state === 'pruned') {
      context.fillRect(begin + 3, y + BAR / 2, Math.min(room, context.measureText(label).width + 4), 1.25);
    }
    context.restore();
  }

  // The branches of the last recurrence in sight, by the depth that they reached in it.
  drawDepths(context) {
    const left = this.width - NOW + 8;
    const bottom = this.height - AXIS;
    context.fillStyle = this.colours('line');
    context.fillRect(left - 8, 0, 1, this.height);
    const step = Math.min(this.branches.step, Math.floor(this.start) + this.columns) - 1;
    const column = Math.min(18, (NOW - 10) / this.recurrence);
    const stacks = new Array(this.recurrence + 1).fill(0);
    for (const { branch, depth } of this.branches.at(step)) {
      const level = stacks[depth]++;
      context.fillStyle = this.colourOf(branch);
      context.globalAlpha = branch.state === 'pruned' || branch.state === 'unused' ? 0.35 : 0.85;
      context.fillRect(left + (depth - 1) * column, bottom - 6 - level * 12, Math.max(1.5, column - 2), 10);
    }
    context.globalAlpha = 1;
    context.fillStyle = this.colours('line');
    context.fillRect(left, bottom + 4, column * this.recurrence - 2, 1.5);
    context.fillStyle = this.colours('soft');
    context.font = `11px ${this.font}`;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText(`loop 1 to ${this.recurrence}`, left, bottom + AXIS / 2 + 4);
  }
}
