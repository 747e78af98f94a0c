// One answer: its tokens as they come, its numbers, and the picture of its branches.
// Whatever the model writes is put in as text, never as HTML.
import { Branches, kindOf } from './branches.js';
import { Pipeline } from './pipeline.js';

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const TITLES = {
  early: 'early child: began on a guess',
  s0: 'fallback: decided at full depth',
  s1: 'first proposal',
  s2: 'second proposal',
  s3: 'third proposal',
  s4: 'a later proposal',
};

export class Answer {
  // `model`: {recurrence}; `depths`: those of the proposals, none for autoregressive decoding.
  constructor({ title, model, depths, watch }) {
    this.model = model;
    this.depths = depths;
    this.speculative = depths.length > 0;
    this.text = '';
    this.tokens = 0;
    this.bySource = { s1: 0, s2: 0, s3: 0, s4: 0, early: 0, s0: 0 };
    this.recurrences = 0; // that the tokens so far took, for gamma
    this.first = null; // time of the first token
    this.last = null;

    this.element = element('article', 'answer');
    this.element.setAttribute('aria-label', `${title} answer`);
    const head = element('header');
    this.state = element('span', 'state', 'waiting');
    head.append(element('h3', '', title), this.state);
    this.body = element('div', 'text');
    this.numbers = element('dl', 'numbers');
    this.speed = this.number('tokens/s');
    this.gamma = this.number('gamma');
    this.count = this.number('tokens');
    this.note = this.number('first token');
    this.share = element('div', 'share');
    this.share.setAttribute('role', 'img');
    this.element.append(head, this.body, this.numbers, this.share);
    this.pipeline = null;
    if (watch) {
      const branches = new Branches();
      branches.plain = !this.speculative;
      this.pipeline = new Pipeline(branches, model.recurrence);
      this.element.append(this.pipeline.element);
    }
    this.started = performance.now();
  }

  number(name) {
    const box = element('div');
    const value = element('dd', '', '–');
    box.append(element('dt', '', name), value);
    this.numbers.append(box);
    return value;
  }

  // An event of the stream.
  add(event) {
    const choice = event.choices?.[0];
    if (choice) {
      const pieces = choice.tokens ?? [];
      for (const token of pieces) this.addToken(token);
      // What a stop string held back belongs to no token of the event.
      const content = choice.delta ? choice.delta.content ?? '' : choice.text ?? '';
      const rest = content.slice(pieces.reduce((length, token) => length + token.text.length, 0));
      if (rest) this.addText(rest, '');
      if (this.pipeline && choice.steps?.length) {
        for (const step of choice.steps) this.pipeline.branches.add(step);
        this.pipeline.request();
      }
      if (choice.finish_reason) this.reason = choice.finish_reason;
    }
    if (event.loopspec) this.summary = event.loopspec;
    this.state.textContent = this.tokens > 0 ? 'writing' : 'reading the prompt';
    this.showNumbers();
  }

  addToken(token) {
    const now = performance.now();
    this.first ??= now;
    this.last = now;
    this.tokens += 1;
    const kind = kindOf(token);
    this.bySource[kind] += 1;
    this.recurrences += token.source > 0 ? this.depths[token.source - 1] ?? this.model.recurrence : this.model.recurrence;
    this.addText(token.text, this.speculative ? kind : '');
  }

  addText(text, kind) {
    this.text += text;
    if (!text) return;
    if (!kind) {
      this.body.append(text);
      return;
    }
    const span = element('span', `token ${kind}`, text);
    span.title = TITLES[kind];
    this.body.append(span);
  }

  showNumbers() {
    const seconds = this.last > this.first ? (this.last - this.first) / 1000 : 0;
    const speed = this.summary?.tokens_per_second || (seconds > 0 ? (this.tokens - 1) / seconds : 0);
    this.tokensPerSecond = speed;
    this.speed.textContent = speed > 0 ? speed.toFixed(speed < 100 ? 1 : 0) : '–';
    const gamma = this.recurrences > 0 ? this.model.recurrence * this.tokens / this.recurrences : 0;
    this.gamma.textContent = gamma > 0 ? `${(this.summary?.gamma || gamma).toFixed(2)}×` : '–';
    this.count.textContent = String(this.tokens);
    if (this.first) this.note.textContent = `${Math.round(this.first - this.started)} ms`;
    this.showShare();
  }

  showShare() {
    if (!this.speculative || this.tokens === 0) return;
    const parts = [];
    for (const [kind, count] of Object.entries(this.bySource)) {
      if (count === 0) continue;
      const name = `part ${kind}`;
      let bar = this.share.querySelector(`.${kind}`);
      if (!bar) {
        bar = element('span', name);
        this.share.append(bar);
      }
      bar.style.flexGrow = count;
      parts.push(`${Math.round(100 * count / this.tokens)} % ${TITLES[kind].split(':')[0]}`);
    }
    this.share.title = parts.join(', ');
    this.share.setAttribute('aria-label', `Tokens by origin: ${this.share.title}`);
  }

  // `how`: done, stopped or failed, with a message.
  finish(how, message) {
    const reasons = { length: 'token limit', stop: 'complete' };
    this.how = how;
    this.state.textContent = how === 'done' ? reasons[this.reason] ?? 'complete' : how;
    this.element.dataset.state = how;
    if (this.summary) {
      const details = [`seed ${this.summary.seed}`];
      if (this.summary.cached_tokens > 0) details.push(`${this.summary.cached_tokens} prompt tokens cached`);
      this.state.title = details.join(', ');
    }
    if (message) {
      const line = element('p', 'error', message);
      line.setAttribute('role', 'alert');
      this.body.after(line);
    }
    this.pipeline?.finish();
    this.showNumbers();
  }
}
