// One answer: its text as it comes, its thinking, its numbers, and the picture of its branches.
import { Branches } from './branches.js';
import { END_OF_CALL, joinCalls, prettyJson, splitCalls } from './calls.js';
import { copyButton, count, duration, element } from './dom.js';
import { ORIGINS, originOf } from './origins.js';
import { Pipeline } from './pipeline.js';
import { LiveText } from './render.js';
import { splitThinking, withoutThinking } from './thinking.js';
import { scoresOf, Tokens } from './tokens.js';

export const TITLES = { loopspec: 'LoopSpec', ar: 'Autoregressive' };
const REASONS = { length: 'token limit', stop: 'complete', tool_calls: 'calls a tool' };
const REST = 4; // drawing may take one part in REST of the time

export class Answer {
  // `model`: {recurrence}; `depths`: those of the drafts, none for autoregressive decoding; `watch`: with the pipeline;
  // `opened`: the prompt ends in <think>.
  constructor({ decode, model, depths, watch, markdown, opened, tokens = new Tokens() }) {
    this.decode = decode;
    this.model = model;
    this.depths = depths;
    this.speculative = decode !== 'ar';
    this.opened = opened;
    this.tokens = tokens;
    this.first = null; // time of the first token
    this.last = null;
    this.thinkingEnd = null;
    this.build(markdown);
    this.pipeline = null;
    if (watch) {
      const branches = new Branches();
      branches.plain = !this.speculative;
      this.pipeline = new Pipeline(branches, model.recurrence);
      // On a phone it would take the place of the answer: folded until somebody wants it.
      this.fold = element('details', 'fold');
      this.fold.open = !window.matchMedia('(max-width: 760px)').matches;
      this.fold.append(element('summary', '', 'Pipeline'), this.pipeline.element);
      this.fold.addEventListener('toggle', () => this.pipeline.request());
      this.element.append(this.fold);
    }
    this.started = performance.now();
  }

  build(markdown) {
    const title = TITLES[this.decode] ?? TITLES.loopspec;
    this.element = element('article', 'answer');
    this.element.setAttribute('aria-label', `${title} answer`);
    const head = element('header');
    this.state = element('span', 'state', 'waiting');
    const tools = element('span', 'tools');
    tools.append(copyButton(() => withoutThinking(this.text)));
    head.append(element('h3', '', title), this.state, tools);

    this.thinking = element('details', 'thinking');
    this.thinkingTitle = element('summary', '', 'Thinking');
    const thought = element('div', 'thought');
    this.thinking.append(this.thinkingTitle, thought);
    this.thinking.hidden = true;
    this.thinkingTitle.addEventListener('click', () => { this.chosen = true; }); // not folded by itself any more
    const body = element('div', 'text');
    const how = { coloured: this.speculative, markdown };
    this.liveThought = new LiveText(thought, this.tokens, how);
    this.liveText = new LiveText(body, this.tokens, how);
    this.body = body;
    this.body.answer = this; // for the tooltip
    thought.answer = this;

    this.numbers = element('dl', 'numbers');
    this.speed = this.number('tokens/s');
    this.perPass = this.number('tokens per pass', `Tokens for every ${this.model.recurrence} loops that were run, as measured: 1 without drafts`);
    this.count = this.number('tokens');
    this.note = this.number('first token');
    this.share = element('div', 'share');
    this.share.setAttribute('role', 'img');
    this.calls = element('div', 'calls');
    this.element.append(head, this.thinking, body, this.calls, this.numbers, this.share);
  }

  number(name, explanation) {
    const box = element('div');
    const value = element('dd', '', '–');
    box.append(element('dt', '', name), value);
    if (explanation) box.title = explanation;
    this.numbers.append(box);
    return value;
  }

  get text() {
    return this.tokens.text;
  }

  // ---- Events of the stream ----

  add(event) {
    const choice = event.choices?.[0];
    if (choice) {
      this.addText(choice);
      if (this.pipeline && choice.steps?.length) {
        for (const step of choice.steps) this.pipeline.branches.add(step);
        this.pipeline.request();
      }
      if (choice.finish_reason) this.reason = choice.finish_reason;
    }
    if (event.loopspec) this.summary = event.loopspec;
    if (event.usage) this.usage = event.usage;
    this.request();
  }

  addText(choice) {
    const pieces = choice.tokens ?? [];
    const scores = scoresOf(choice);
    pieces.forEach((token, i) => this.addToken(token, scores[i]));
    const reasoning = choice.delta?.reasoning_content ?? '';
    const content = choice.delta ? choice.delta.content ?? '' : choice.text ?? '';
    if (pieces.length > 0 && reasoning === '') {
      // What a stop string held back belongs to no token of the event.
      this.tokens.addText(content.slice(pieces.reduce((length, token) => length + token.text.length, 0)));
    } else if (pieces.length === 0) {
      // A server that sets reasoning apart: put back together, for one way of telling them apart.
      if (reasoning !== '' && !this.apart) this.tokens.addText('<think>');
      if (reasoning !== '') this.apart = 'thinking';
      this.tokens.addText(reasoning);
      if (content !== '' && this.apart === 'thinking') {
        this.tokens.addText('</think>');
        this.apart = 'done';
      }
      this.tokens.addText(content);
      this.addCalls(choice);
    }
  }

  // Calls that the server set apart, put back together as well.
  addCalls(choice) {
    const { text, count: seen } = joinCalls(choice.delta?.tool_calls ?? [], this.called ?? 0);
    this.called = seen;
    this.tokens.addText(text);
    if (seen > 0 && choice.finish_reason === 'tool_calls') this.tokens.addText(END_OF_CALL);
  }

  addToken(token, score) {
    const now = performance.now();
    this.first ??= now;
    this.last = now;
    this.tokens.add(token, score);
  }

  // ---- Drawing ----

  // Soon, but not so often that the browser does nothing else.
  request() {
    if (this.pending || this.how) return;
    this.pending = true;
    const wait = Math.max(0, (this.drawn ?? 0) + REST * (this.cost ?? 0) - performance.now());
    setTimeout(() => requestAnimationFrame(() => {
      this.pending = false;
      if (!this.how) this.draw();
    }), wait);
  }

  // Everything that changes with the text; `onDraw` scrolls, which is when the browser lays it out.
  draw() {
    const begin = performance.now();
    if (!this.how) this.state.textContent = this.tokens.list.length > 0 ? 'writing' : 'reading the prompt';
    this.showNumbers();
    const { thinking, answer, open } = splitThinking(this.text, this.opened);
    this.thinking.hidden = thinking === null || thinking[0] === thinking[1];
    if (thinking) {
      this.liveThought.show(...thinking);
      this.showThinking(open);
    }
    const { text, calls } = splitCalls(this.text, ...answer);
    this.liveText.show(...text);
    this.showCalls(calls, text);
    this.onDraw?.();
    this.drawn = performance.now();
    this.cost = this.drawn - begin;
  }

  // Open while the model thinks, folded afterwards, unless the reader chose otherwise.
  showThinking(open) {
    const running = open && !this.how;
    if (!running) this.thinkingEnd ??= this.last ?? performance.now();
    const seconds = this.first && !this.restored ? ((this.thinkingEnd ?? performance.now()) - this.first) / 1000 : 0;
    const time = seconds > 0.05 ? ` ${running ? '…' : 'for'} ${seconds.toFixed(1)} s` : '';
    this.thinkingTitle.textContent = `${running ? 'Thinking' : 'Thought'}${time}`;
    if (!this.chosen) this.thinking.open = running;
  }

  // Each call folded under its name; an answer that is JSON once more, with a line for each member.
  showCalls(calls, [from, to]) {
    const cards = calls.map(({ name, shown }) => [`Calls ${name || '…'}`, shown, false]);
    const json = this.how && calls.length === 0 ? prettyJson(this.text.slice(from, to)) : null;
    if (json) cards.push(['JSON', json, true]);
    while (this.calls.children.length > cards.length) this.calls.lastChild.remove();
    cards.forEach(([title, shown, open], i) => {
      if (!this.calls.children[i]) {
        const made = element('details', 'call');
        made.open = open;
        made.append(element('summary'), element('pre'));
        this.calls.append(made);
      }
      const [summary, body] = this.calls.children[i].children;
      summary.textContent = title;
      body.textContent = shown;
    });
  }

  setMarkdown(markdown) {
    this.liveThought.setMarkdown(markdown);
    this.liveText.setMarkdown(markdown);
    this.draw();
  }

  showNumbers() {
    const tokens = this.tokens.list.length;
    const seconds = this.last > this.first ? (this.last - this.first) / 1000 : 0;
    const speed = this.summary?.tokens_per_second || (seconds > 0 ? (tokens - 1) / seconds : 0);
    this.tokensPerSecond = speed;
    this.speed.textContent = speed > 0 ? speed.toFixed(speed < 100 ? 1 : 0) : '–';
    const loops = this.pipeline?.branches.step ?? 0; // so far
    this.tokensPerPass = this.summary?.tokens_per_pass || (loops > 0 ? this.model.recurrence * tokens / loops : 0);
    this.perPass.textContent = this.tokensPerPass > 0 ? this.tokensPerPass.toFixed(2) : '–';
    this.count.textContent = String(tokens);
    if (this.first) this.note.textContent = duration(this.first - this.started);
    this.note.parentElement.hidden = Boolean(this.restored); // how long it took is not kept
    this.showShare();
  }

  showShare() {
    const tokens = this.tokens.list;
    if (!this.speculative || tokens.length === 0) return;
    const counts = new Map(ORIGINS.map(({ kind }) => [kind, 0]));
    for (const { kind } of tokens) counts.set(kind, counts.get(kind) + 1);
    const bars = [];
    const words = [];
    for (const [kind, number] of counts) {
      if (number === 0) continue;
      const bar = element('span', `part ${kind}`);
      bar.style.flexGrow = number;
      bars.push(bar);
      words.push(`${Math.round(100 * number / tokens.length)} % ${originOf(kind).name}`);
    }
    this.share.replaceChildren(...bars);
    this.share.title = words.join(', ');
    this.share.setAttribute('aria-label', `Tokens by origin: ${this.share.title}`);
  }

  // ---- The end ----

  // `how`: done, stopped or failed, with a message and buttons.
  finish(how, message, buttons = []) {
    this.how = how;
    this.state.textContent = how === 'done' ? REASONS[this.reason] ?? 'complete' : how;
    this.element.dataset.state = how;
    if (this.summary) {
      const details = [`seed ${this.summary.seed}`];
      if (this.speculative && this.summary.gamma > 0) details.push(`gamma ${this.summary.gamma.toFixed(2)}: what the accepted drafts alone would give, by the paper's formula`);
      if (this.summary.cached_tokens > 0) details.push(`${count(this.summary.cached_tokens, 'prompt token')} cached`);
      this.state.title = details.join(', ');
    }
    if (message) this.say('error', message, buttons);
    this.numbers.hidden = how === 'failed' && this.tokens.list.length === 0;
    this.draw();
    this.pipeline?.finish();
    if (this.pipeline?.branches.all.length === 0) this.fold.hidden = true; // nothing happened
  }

  // A line below the text.
  say(className, message, buttons = []) {
    const line = element('p', className);
    if (className === 'error') line.setAttribute('role', 'alert');
    line.append(element('span', '', message), ...buttons);
    this.numbers.before(line);
  }

  // ---- Storage ----

  save() {
    return {
      decode: this.decode, how: this.how, reason: this.reason, depths: this.depths, text: this.text, tokens: this.tokens.save(), opened: this.opened,
      tokens_per_second: this.tokensPerSecond, tokens_per_pass: this.tokensPerPass,
    };
  }

  // An answer as it was kept; without its pipeline, which is not.
  static restore(saved, { model, markdown }) {
    const answer = new Answer({
      decode: saved.decode === 'ar' ? 'ar' : 'loopspec', model, markdown, watch: false, depths: saved.depths ?? [], opened: saved.opened === true,
      tokens: Tokens.load(saved.text, saved.tokens),
    });
    answer.restored = true;
    answer.summary = { tokens_per_second: Number(saved.tokens_per_second) || 0, tokens_per_pass: Number(saved.tokens_per_pass) || 0 };
    answer.reason = saved.reason;
    answer.finish(['done', 'stopped', 'failed'].includes(saved.how) ? saved.how : 'done');
    answer.state.title = '';
    return answer;
  }
}
