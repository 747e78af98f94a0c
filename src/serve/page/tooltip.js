// What is known of the token under the pointer: where it came from, how likely it was, what else was.
import { element } from './dom.js';
import { originOf } from './origins.js';

const MOST = 5;

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share > 0 && share < 0.01 ? '< 0.01 %' : `${share >= 99.995 || share < 10 ? share.toFixed(2) : share.toFixed(1)} %`;
}

function shown(text) {
  return text.replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/^ | $/g, '␣') || '(nothing)';
}

export class Tooltip {
  constructor(log) {
    this.box = element('div', 'tooltip');
    this.box.setAttribute('role', 'tooltip');
    this.box.id = 'token-tooltip';
    this.box.hidden = true;
    document.body.append(this.box);
    log.addEventListener('pointerover', (event) => this.over(event.target));
    log.addEventListener('pointerleave', () => this.hide());
    log.addEventListener('click', (event) => this.over(event.target)); // a finger does not hover
    log.addEventListener('scroll', () => this.hide(), { passive: true });
  }

  hide() {
    this.box.hidden = true;
  }

  over(target) {
    const span = target.closest?.('[data-token]');
    const answer = span?.closest('.text, .thought')?.answer;
    const token = answer?.tokens.list[Number(span.dataset.token)];
    if (!token) {
      this.hide();
      return;
    }
    this.fill(answer, token);
    this.box.hidden = false;
    const place = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const box = this.box.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.left, innerWidth - box.width - 8));
    const above = place.top - box.height - 8;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${above > 8 ? above : place.bottom + 8}px`;
  }

  fill(answer, token) {
    const head = element('p', 'tooltip-head');
    const text = element('b', '', shown(answer.text.slice(token.start, token.end)));
    text.dir = 'auto';
    head.append(text);
    if (answer.speculative) head.append(element('span', `kind ${token.kind}`, originOf(token.kind).name));
    const parts = [head];
    if (token.logprob !== undefined) parts.push(this.probabilities(answer, token));
    this.box.replaceChildren(...parts);
  }

  probabilities(answer, token) {
    const text = answer.text.slice(token.start, token.end);
    const top = (token.top ?? []).slice(0, MOST);
    // The chosen token is always listed, even where others were likelier.
    if (!top.some((other) => other.text === text)) top.push({ text, logprob: token.logprob });
    const table = element('table');
    const body = element('tbody');
    for (const other of top) {
      const row = element('tr', other.text === text ? 'chosen' : '');
      const name = element('td', '', shown(other.text));
      const bar = element('td', 'likely');
      const fill = element('span');
      name.dir = 'auto';
      fill.style.width = `${(100 * Math.exp(other.logprob)).toFixed(1)}%`;
      bar.append(fill);
      row.append(name, element('td', 'share-of', percent(other.logprob)), bar);
      body.append(row);
    }
    table.append(body);
    return table;
  }
}
